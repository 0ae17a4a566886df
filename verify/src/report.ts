// Formats a verdict for people.
import type { AuditVerdict } from './audit-log.ts';
import type { BundlesVerdict, BundleVerdict } from './bundle-file.ts';
import type { ResultVerdict, RolloutVerdict } from './rollout-proof.ts';
import type { Statement, StepName, Verdict, VerdictName } from './verdict.ts';

const conclusions: Record<VerdictName, (last: StepName | undefined) => string> = {
  proven: () => 'proven',
  mined: () => 'mined, not proven: a trusted block is required (--headers, --checkpoint or --headers-url)',
  refuted: (last) => (last === undefined ? 'refuted' : `refuted at ${last}`),
  malformed: (last) => (last === undefined ? 'malformed' : `malformed at ${last}`),
};

/** Formats the steps, the verdict and what it proves, one per line; `note` is an addition of the command. */
export function formatVerdict({ verdict, steps, statement }: Verdict, note?: string): string {
  const lines = steps.map(({ step, passed, detail }) => {
    const mark = passed ? 'ok  ' : verdict === 'mined' ? '-   ' : 'FAIL';
    return `${mark} ${step.padEnd(11)} ${detail}`;
  });
  if (note !== undefined) lines.push(`note: ${note}`);
  lines.push('', conclusions[verdict](steps.at(-1)!.step));
  if (statement !== undefined) lines.push(...formatStatement(statement));
  return `${lines.map(printable).join('\n')}\n`;
}

/** Formats what is known about one result, on one line. */
export function formatResult(result: ResultVerdict): string {
  const mark = { anchored: 'ok  ', pending: '-   ', refuted: 'FAIL' }[result.verdict];
  const parts = [mark, result.device_id, formatTime(result.timestamp), result.result, result.reported_version];
  if (result.verdict === 'anchored') parts.push(`block ${result.block_height}`);
  if (result.verdict === 'pending') parts.push('not anchored yet');
  if (result.reason !== undefined) parts.push(result.reason);
  return `${printable(parts.filter((part) => part !== '').join(' '))}\n`;
}

/** Formats the verdict on a rollout proof, and what it proves. */
export function formatRolloutVerdict(verdict: RolloutVerdict, note?: string): string {
  const { counts, anchored } = verdict;
  const byResult = Object.entries(anchored).map(([result, count]) => `${count} ${result}`);
  const rows: [string, string][] = [
    ['tenant', verdict.tenant_id ?? ''],
    ['rollout', verdict.rollout_id ?? ''],
    ['package', verdict.package_id ?? ''],
    ['results', `${counts.results}: ${counts.anchored} anchored, ${counts.pending} pending, ${counts.refuted} refuted`],
    ['anchored', `${byResult.join(', ') || 'none'}, of ${verdict.devices} devices, in ${verdict.batches} batches`],
    ['blocks', verdict.first_block === undefined ? '' : `${verdict.first_block} to ${verdict.last_block}`],
    ['work', verdict.work === undefined ? '' : `${verdict.work} hashes expected behind these blocks`],
  ];
  const lines = [
    ...(note === undefined ? [] : [`note: ${note}`]),
    verdict.reason === undefined ? verdict.verdict : `${verdict.verdict}: ${verdict.reason}`,
    ...(verdict.verdict === 'malformed' ? [] : rows.filter(([, value]) => value !== '')).map(
      ([name, value]) => `  ${name.padEnd(11)} ${value}`,
    ),
  ];
  return `\n${lines.map(printable).join('\n')}\n`;
}

/** Formats the verdict on one of many bundles, on one line. */
export function formatBundle({ verdict, line, data_hash: hash, reason }: BundleVerdict): string {
  const mark = verdict === 'mined' ? '-   ' : 'FAIL';
  const parts = [mark, `line ${line}`, hash, `${verdict}${reason === undefined ? '' : `: ${reason}`}`];
  return `${printable(parts.filter((part) => part !== undefined).join(' '))}\n`;
}

/** Formats the verdict on many bundles. */
export function formatBundlesVerdict({ verdict, counts }: BundlesVerdict, note?: string): string {
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const conclusion = all === 0 ? 'malformed: no bundles' : conclusions[verdict](undefined);
  const row = `${all}: ${counts.proven} proven, ${counts.mined} mined, ${counts.refuted} refuted, ${counts.malformed} malformed`;
  const lines = [...(note === undefined ? [] : [`note: ${note}`]), conclusion, `  bundles     ${row}`];
  return `\n${lines.map(printable).join('\n')}\n`;
}

/** The verdict on an audit log, with what the proofs of its anchors add. */
export type AuditReport = Omit<AuditVerdict, 'verdict'> & { readonly verdict: AuditVerdict['verdict'] | VerdictName };

/** Formats the verdict on an audit log. */
export function formatAuditVerdict({ verdict, reason, events, first, last, anchored, tenant_id }: AuditReport): string {
  const span = first === undefined ? 'none' : `${events}: ${first} to ${last}`;
  const begin = first !== undefined && first > 1 ? `, and not those before ${first}` : '';
  const lines = [
    reason === undefined ? verdict : `${verdict}: ${reason}`,
    ...(verdict === 'malformed' ? [] : [`  events      ${span}${begin}`]),
    ...(anchored === undefined ? [] : [`  anchored    up to ${anchored}`]),
    ...(tenant_id === undefined ? [] : [`  tenant      ${tenant_id}`]),
  ];
  return `${lines.map(printable).join('\n')}\n`;
}

/** Escapes control and formatting characters, so that a bundle or a header source cannot control the terminal. */
export function printable(line: string): string {
  return line.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (character) => `\\u{${character.codePointAt(0)!.toString(16)}}`);
}

/** Returns JSON in which such characters are escaped, too. JSON.stringify itself escapes few of them. */
export function printableJson(value: unknown, indent?: number): string {
  const escape = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  const text = JSON.stringify(value, undefined, indent);
  return `${text.replace(/[\x7f-\x9f\p{Cf}\p{Zl}\p{Zp}]/gu, (character) => character.split('').map(escape).join(''))}\n`;
}

function formatStatement(statement: Statement): string[] {
  const rows: [string, string][] = [
    ['tenant', statement.tenant_id],
    ['device', statement.device_id],
    ['time', formatTime(statement.timestamp)],
    ['payload', statement.payload],
    ['batch', `${statement.batch_id}, sealed ${formatTime(statement.committed_at)}`],
    ['transaction', statement.txid],
    ['block', `${statement.block_height} ${statement.block_hash}, mined ${formatTime(statement.block_time)}`],
    ['depth', `${statement.proven_depth} shown by headers, ${statement.claimed_depth} claimed`],
    ['work', `${statement.work} hashes expected behind the headers shown`],
  ];
  return rows.map(([name, value]) => `  ${name.padEnd(11)} ${value}`);
}

/** Formats Unix seconds as RFC 3339, or as a number if out of the calendar's range. */
function formatTime(seconds: number): string {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? `${seconds} s after 1970` : date.toISOString().replace('.000Z', 'Z');
}
