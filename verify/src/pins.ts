// Pins: blocks that the reader trusts, which distinguish the bundle's chain from any other with proof of work.
import { fromHex, toDisplayHex, toHex } from './bytes.ts';
import { MalformedError, messageOf, RefutedError } from './errors.ts';
import { checkHeaderChain, type HeaderAtHeight, type HeaderChain } from './headers.ts';

/** A block known to be on the chain: its height, its hash as displayed, and its source. */
export interface Pin {
  height: number;
  hash: string;
  source: string;
}

/**
 * Parses `HEIGHT:HASH`.
 * @throws {MalformedError} for anything else
 */
export function parseCheckpoint(text: string): Pin {
  const match = /^(\d{1,10}):([0-9a-fA-F]{64})$/.exec(text);
  if (match === null) throw new MalformedError(`a checkpoint must be HEIGHT:HASH, not ${text}`);
  return { height: Number(match[1]), hash: match[2]!.toLowerCase(), source: 'checkpoint' };
}

/**
 * Parses a headers file: one line `HEIGHT HEADER-IN-HEX` per header, with increasing heights and possible gaps.
 * @throws {MalformedError} for any other line, or an empty file
 */
export function parseHeadersFile(text: string): HeaderAtHeight[] {
  const lines = text.split(/\r?\n/);
  if (lines.at(-1) === '') lines.pop();
  if (lines.length === 0) throw new MalformedError('no headers');
  return lines.map((line, i) => parseHeaderLine(line, i + 1));
}

/**
 * Parses one line of a headers file, without its line break.
 * @throws {MalformedError} for any other text; `number` is the line number in the message
 */
export function parseHeaderLine(line: string, number: number): HeaderAtHeight {
  const match = /^(\d{1,10}) ([0-9a-fA-F]{160})$/.exec(line);
  if (match === null) throw new MalformedError(`line ${number} is not HEIGHT HEADER-IN-HEX`);
  return { height: Number(match[1]), raw: fromHex(match[2]!) };
}

/** Formats a headers file. */
export function formatHeadersFile(headers: readonly HeaderAtHeight[]): string {
  return headers.map(({ height, raw }) => `${height} ${toHex(raw)}\n`).join('');
}

/**
 * Returns the pins of trusted headers: each of their blocks, and the block before each run of consecutive ones.
 * @throws {MalformedError} if heights do not increase, a run is not linked, or a header has no proof of work
 */
export function pinsOfHeaders(headers: readonly HeaderAtHeight[], source: string): Pin[] {
  const pins = new HeaderPins(source);
  return headers.flatMap((header) => pins.add(header));
}

/** Makes pins of trusted headers one at a time, so that a long list need not be in memory. */
export class HeaderPins {
  private readonly source: string;
  private last: HeaderAtHeight | undefined;

  constructor(source: string) {
    this.source = source;
  }

  /** Returns the pins of the next header; throws like `pinsOfHeaders`. */
  add(next: HeaderAtHeight): Pin[] {
    const last = this.last;
    if (last !== undefined && next.height <= last.height) {
      throw new MalformedError(`height ${next.height} comes after height ${last.height}`);
    }
    this.last = next;
    const continues = last !== undefined && next.height === last.height + 1;
    const { header, hash } = checkRun(continues ? [last, next] : [next]).at(-1)!;
    const own = { height: next.height, hash: toDisplayHex(hash), source: this.source };
    if (continues) return [own];
    return [{ height: next.height - 1, hash: toDisplayHex(header.previousHash), source: this.source }, own];
  }
}

function checkRun(run: readonly HeaderAtHeight[]): HeaderChain['headers'] {
  try {
    return checkHeaderChain(run).headers;
  } catch (error) {
    if (error instanceof RefutedError) throw new MalformedError(messageOf(error));
    throw error;
  }
}
