// Reads and checks devchain's settings from flags and environment.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

/** Settings of devchain. */
export interface Config {
  /** Port on 127.0.0.1; 0 for any free one. */
  readonly port: number;
  /** Folder of the journal; created if missing. */
  readonly directory: string;
  /** How often a block is mined while transactions wait, in milliseconds. */
  readonly blockMilliseconds: number;
  /** How often callbacks are sent, in milliseconds (the real processor: 2000). */
  readonly callbackMilliseconds: number;
  /** Key of X-ARC-Signature; without one callbacks are not signed, like the real processor's. */
  readonly callbackSecret: string | undefined;
  /** Headers of the blocks that the chain continues, 80 bytes each from height 0 on; without them it begins by itself. */
  readonly headers: readonly Uint8Array[] | undefined;
  /** Bearer token that the processor's routes require; without one they are open. */
  readonly arcToken: string | undefined;
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Returns the settings from `KELLET_DEVCHAIN_PORT`, `_DIR`, `_BLOCK_MS`, `_CALLBACK_MS`, `_HEADERS_FILE`, `_ARC_TOKEN` and
 * `KELLET_CALLBACK_HMAC_SECRET` (secrets also as `NAME_FILE`), overridden by `--port`, `--dir`, `--block-ms`,
 * `--callback-ms`. Throws an Error that names an invalid setting.
 */
export function readConfig(argv: readonly string[], environment: Environment): Config {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      port: { type: 'string' },
      dir: { type: 'string' },
      'block-ms': { type: 'string' },
      'callback-ms': { type: 'string' },
    },
  });
  const number = (
    flag: 'port' | 'block-ms' | 'callback-ms',
    name: string,
    fallback: number,
    min: number,
    max: number,
  ) =>
    wholeNumber(values[flag] ?? environment[name], values[flag] === undefined ? name : `--${flag}`, fallback, min, max);
  return {
    port: number('port', 'KELLET_DEVCHAIN_PORT', 0, 0, 65_535),
    directory: values.dir ?? environment.KELLET_DEVCHAIN_DIR ?? '.kellet/devchain',
    blockMilliseconds: number('block-ms', 'KELLET_DEVCHAIN_BLOCK_MS', 2000, 10, 3_600_000),
    callbackMilliseconds: number('callback-ms', 'KELLET_DEVCHAIN_CALLBACK_MS', 250, 10, 60_000),
    callbackSecret: secret('KELLET_CALLBACK_HMAC_SECRET', environment),
    headers: headersOf(environment.KELLET_DEVCHAIN_HEADERS_FILE),
    arcToken: secret('KELLET_DEVCHAIN_ARC_TOKEN', environment),
  };
}

function wholeNumber(text: string | undefined, name: string, fallback: number, min: number, max: number): number {
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!/^\d+$/.test(text) || value < min || value > max)
    throw new Error(`${name} must be a whole number from ${min} to ${max}`);
  return value;
}

const headerBytes = 80;

function headersOf(file: string | undefined): Uint8Array[] | undefined {
  if (file === undefined || file === '') return undefined;
  const bytes = readFileSync(file);
  if (bytes.length === 0 || bytes.length % headerBytes !== 0)
    throw new Error('KELLET_DEVCHAIN_HEADERS_FILE must have headers of 80 bytes');
  return Array.from({ length: bytes.length / headerBytes }, (_, height) =>
    Uint8Array.from(bytes.subarray(height * headerBytes, (height + 1) * headerBytes)),
  );
}

function secret(name: string, environment: Environment): string | undefined {
  const file = environment[`${name}_FILE`];
  const value = environment[name] ?? (file === undefined ? undefined : readFileSync(file, 'utf8').trim());
  return value === '' ? undefined : value;
}
