// proof: shows the proof of an anchored point, saves the bundle for offline verification, or lists a device's proofs; of a rollout,
// see proof-rollout.ts.
import { writeFile } from 'node:fs/promises';
import { numberOption } from '../arguments.ts';
import { type Outcome, PluginError, usageError } from '../errors.ts';
import { formatTable } from '../format/table.ts';
import { formatValue } from '../output.ts';
import type { Session } from '../session.ts';

/** A proof as returned by the API, as far as it is shown. */
export interface Proof {
  readonly data_hash: string;
  readonly device_id: string;
  readonly batch_id: string;
  readonly txid: string;
  readonly block_height: number;
  readonly block_hash: string;
  readonly confirmed_at?: string;
  readonly bundle?: object;
}

/** Parsed argument. */
export type ProofTarget =
  | { readonly kind: 'rollout'; readonly name: string }
  | { readonly kind: 'hash'; readonly hash: string; readonly deviceId: string | undefined }
  | { readonly kind: 'device'; readonly deviceId: string };

const hashPattern = /^[0-9a-f]{64}$/i;
const idPattern = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Parses `rollout NAME`, HASH, DEVICE/HASH or DEVICE. Throws PluginError `usage` for anything else. */
export function proofTarget(text: string, name?: string): ProofTarget {
  if (text === 'rollout' && name !== undefined) return { kind: 'rollout', name };
  if (text === 'rollout') throw usageError('proof rollout needs the name of a rollout', 'proof');
  if (name !== undefined) throw usageError(`proof takes one argument, or rollout NAME, not ${text} ${name}`, 'proof');
  const [first, second, ...more] = text.split('/') as [string, ...string[]];
  if (more.length === 0 && second === undefined) {
    if (hashPattern.test(first)) return { kind: 'hash', hash: first.toLowerCase(), deviceId: undefined };
    if (idPattern.test(first)) return { kind: 'device', deviceId: first.toLowerCase() };
  } else if (more.length === 0 && idPattern.test(first) && hashPattern.test(second!)) {
    return { kind: 'hash', hash: second!.toLowerCase(), deviceId: first.toLowerCase() };
  }
  throw usageError(
    `${text} is neither a hash (64 hex digits), nor a device id, nor DEVICE/HASH, nor rollout NAME`,
    'proof',
  );
}

/** Formats a proof as text. */
export function formatProof(proof: Proof): string {
  return [
    ['Hash', proof.data_hash],
    ['Device', proof.device_id],
    ['Batch', proof.batch_id],
    ['Transaction', proof.txid],
    ['Block', `${proof.block_height} ${proof.block_hash}`],
    ['Confirmed', proof.confirmed_at ?? ''],
  ]
    .map(([name, value]) => `${`${name}:`.padEnd(13)}${value}\n`)
    .join('');
}

/** Runs the command. */
export async function runProof(session: Session): Promise<Outcome> {
  const { dataPlane, line, terminal } = session;
  const target = proofTarget(line.args[0]!, line.args[1]);
  if (target.kind === 'rollout') return (await import('./proof-rollout.ts')).runRolloutProof(session, target.name);
  const file = session.option('bundle');
  const format = session.option('output');
  if (format !== undefined && !['json', 'yaml', 'name'].includes(format)) {
    throw usageError(`--output takes json, yaml or name, not ${format}; a file only with rollout NAME`, 'proof');
  }
  if (target.kind === 'device') {
    if (file !== undefined) throw usageError('--bundle needs the hash of a point', 'proof');
    const query = { device_id: target.deviceId, limit: String(numberOption(line, 'limit', 1, 500) ?? 20) };
    const response = await dataPlane.call<{ proofs: Proof[]; total: number }>('GET', 'verify/proofs', { query });
    if (format === 'json' || format === 'yaml') terminal.write(formatValue(response, format));
    else if (format === 'name') for (const { data_hash } of response.proofs) terminal.write(`${data_hash}\n`);
    else if (response.proofs.length === 0) terminal.say('no proofs of this device yet: anchoring takes about a block');
    else {
      const rows = response.proofs.map(({ data_hash, batch_id, block_height, confirmed_at = '' }) => [
        ...[data_hash, batch_id, String(block_height), confirmed_at],
      ]);
      terminal.write(formatTable(['HASH', 'BATCH', 'BLOCK', 'CONFIRMED'], rows, session.view().paint));
      if (response.total > rows.length) terminal.say(`${rows.length} of ${response.total}; more: --limit N`);
    }
    return 'ok';
  }
  const query = { include_bundle: file === undefined ? undefined : 'true' };
  const proof = await dataPlane.call<Proof>('GET', `verify/hash/${target.hash}`, { query });
  if (target.deviceId !== undefined && proof.device_id !== target.deviceId) {
    throw new PluginError('failed', `${target.hash} belongs to another device: ${proof.device_id}`);
  }
  if (file === '-') terminal.write(formatValue(proof.bundle, 'json'));
  else if (file !== undefined) {
    await writeFile(file, formatValue(proof.bundle, 'json')).catch((error: Error) => {
      throw new PluginError('failed', `${file} cannot be written: ${error.message}`);
    });
  }
  if (format === 'json' || format === 'yaml') terminal.write(formatValue(proof, format));
  else if (format === 'name') terminal.write(`${proof.data_hash}\n`);
  else if (file !== '-') terminal.write(formatProof(proof));
  if (file !== undefined && file !== '-') {
    terminal.say(
      `wrote the bundle to ${file}; to verify it without Kellet: kellet-verify ${file} --headers-url URL (a header source you trust)`,
    );
  }
  return 'ok';
}
