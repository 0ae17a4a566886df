// The identities of simulated devices: claimed or imported once, and kept in a file for the next run.
import fs from 'node:fs';
import { insist, type Insisting } from '../backoff.ts';
import { httpError } from '../errors.ts';
import type { Identity } from '../messages.ts';
import { nodeHttp } from '../transports/node-http.ts';
import type { Protocol } from '../transports/transport.ts';
import type { SimOptions } from './options.ts';

interface Stored extends Identity {
  hardware_id: string;
}

/** Where identities come from. */
export interface Source {
  readonly options: SimOptions;
  readonly protocol: Protocol;
  /** Key of a provisioning template, for claims. */
  readonly provisionKey: string;
  /** Credential that may import devices. */
  readonly apiKey: string;
  readonly insisting: Insisting;
  readonly onProgress: (count: number) => void;
}

const claimsAtOnce = 16;
const importLines = 500;

/** Returns an identity for each device, from the file or from the platform. */
export async function makeIdentities(source: Source): Promise<Identity[]> {
  const { devices, prefix, state, profile } = source.options;
  const known = readState(state);
  const wanted = Array.from({ length: devices }, (_, index) => `${prefix}${index + 1}`);
  const missing = wanted.filter((hardwareId) => !known.has(hardwareId));
  let count = devices - missing.length;
  const file = fs.openSync(state, 'a', 0o600);
  const keep = (identity: Stored): void => {
    known.set(identity.hardware_id, identity);
    fs.writeSync(file, `${JSON.stringify(identity)}\n`);
    source.onProgress(++count);
  };
  try {
    if (missing.length > 0) await (profile === '' ? claimAll : importAll)(source, missing, keep);
  } finally {
    fs.closeSync(file);
  }
  return wanted.map((hardwareId) => known.get(hardwareId)!);
}

function readState(file: string): Map<string, Stored> {
  const known = new Map<string, Stored>();
  if (!fs.existsSync(file)) return known;
  // A file that was copied, for example: it contains keys.
  fs.chmodSync(file, 0o600);
  for (const line of fs.readFileSync(file, 'utf8').split('\n')) {
    try {
      const { hardware_id, device_id, api_key } = JSON.parse(line) as Stored;
      if (device_id && api_key) known.set(hardware_id, { hardware_id, device_id, api_key });
    } catch {
      // The last line, if the process was killed while it wrote it.
    }
  }
  return known;
}

type Keep = (identity: Stored) => void;

async function claimAll(source: Source, missing: readonly string[], keep: Keep): Promise<void> {
  const { protocol, provisionKey, insisting } = source;
  if (provisionKey === '') throw new Error('set KELLET_PROVISION_KEY, or --profile and KELLET_API_KEY');
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < missing.length) {
      const hardware_id = missing[next++]!;
      const claim = { provision_key: provisionKey, device_name: hardware_id, hardware_id };
      const identity = await insist(() => protocol.claim(claim, insisting.signal), insisting);
      if (identity.api_key === '') throw lost(hardware_id, source.options.state);
      keep({ hardware_id, ...identity });
    }
  };
  await Promise.all(Array.from({ length: claimsAtOnce }, worker));
}

const lost = (hardwareId: string, state: string): Error =>
  new Error(`${hardwareId} exists, but its key is not in ${state}: choose another --prefix or --state`);

interface ImportLine {
  device_id?: string;
  api_key?: string;
  error?: unknown;
  summary?: unknown;
}

async function importAll(source: Source, missing: readonly string[], keep: Keep): Promise<void> {
  const { options, apiKey, insisting } = source;
  if (options.restUrl === '') throw new Error('--profile imports over REST: give --rest-url as well');
  if (apiKey === '') throw new Error('--profile needs a credential that may import devices in KELLET_API_KEY');
  const { send, close } = nodeHttp();
  try {
    for (let first = 0; first < missing.length; first += importLines) {
      const part = missing.slice(first, first + importLines);
      const lines = part.map((hardware_id) => ({ name: hardware_id, hardware_id, profile_name: options.profile }));
      const response = await send({
        method: 'POST',
        url: `${options.restUrl.replace(/\/+$/, '')}/api/v1/devices/import`,
        headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/x-ndjson' },
        body: lines.map((line) => `${JSON.stringify(line)}\n`).join(''),
        signal: insisting.signal,
      });
      const text = Buffer.from(response.body).toString();
      if (response.status !== 200) throw httpError(response.status, parsed(text), response.header('retry-after'));
      const report = text
        .split('\n')
        .filter(Boolean)
        .map((line) => parsed(line) as ImportLine);
      for (const [index, hardware_id] of part.entries()) {
        const { device_id = '', api_key = '', error } = report[index] ?? {};
        if (error) throw new Error(`the import of ${hardware_id} was rejected: ${JSON.stringify(error)}`);
        if (api_key === '') throw lost(hardware_id, options.state);
        keep({ hardware_id, device_id, api_key });
      }
    }
  } finally {
    close();
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
