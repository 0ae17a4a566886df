// Pins: blocks that the reader trusts, which tell the chain of a bundle from any other with proof of work.
import { fromHex, toDisplayHex, toHex } from './bytes.ts';
import { MalformedError, messageOf, RefutedError } from './errors.ts';
import { checkHeaderChain } from './headers.ts';
import type { HeaderAtHeight, HeaderChain } from './headers.ts';

/** A block that is known to be on the chain: its height, its hash as displayed, and who says so. */
export interface Pin {
  height: number;
  hash: string;
  source: string;
}

/**
 * Reads `HEIGHT:HASH`.
 * @throws {MalformedError} for anything else
 */
export function parseCheckpoint(text: string): Pin {
  const match = /^(\d{1,10}):([0-9a-fA-F]{64})$/.exec(text);
  if (match === null) throw new MalformedError(`a checkpoint is HEIGHT:HASH, not ${text}`);
  return { height: Number(match[1]), hash: match[2]!.toLowerCase(), source: 'checkpoint' };
}

/**
 * Reads a headers file: a line `HEIGHT HEADER-IN-HEX` each, heights rising, gaps allowed.
 * @throws {MalformedError} for any other line, or an empty file
 */
export function parseHeadersFile(text: string): HeaderAtHeight[] {
  const lines = text.split(/\r?\n/);
  if (lines.at(-1) === '') lines.pop();
  if (lines.length === 0) throw new MalformedError('no headers');
  return lines.map((line, i) => parseHeaderLine(line, i + 1));
}

/**
 * Reads one line of a headers file, without its end.
 * @throws {MalformedError} for any other line; `number` says which one it is
 */
export function parseHeaderLine(line: string, number: number): HeaderAtHeight {
  const match = /^(\d{1,10}) ([0-9a-fA-F]{160})$/.exec(line);
  if (match === null) throw new MalformedError(`line ${number} is not HEIGHT HEADER-IN-HEX`);
  return { height: Number(match[1]), raw: fromHex(match[2]!) };
}

/** The text of a headers file. */
export function formatHeadersFile(headers: readonly HeaderAtHeight[]): string {
  return headers.map(({ height, raw }) => `${height} ${toHex(raw)}\n`).join('');
}

/**
 * What trusted headers pin: each of their blocks, and the block that the first of each run of them follows.
 * @throws {MalformedError} when heights do not rise, a run does not hang together, or a header has no proof of work
 */
export function pinsOfHeaders(headers: readonly HeaderAtHeight[], source: string): Pin[] {
  const pins = new HeaderPins(source);
  return headers.flatMap((header) => pins.add(header));
}

/** Makes pins of trusted headers one at a time, so that a long list of them need not be held. */
export class HeaderPins {
  readonly #source: string;
  #last: HeaderAtHeight | undefined;

  constructor(source: string) {
    this.#source = source;
  }

  /** What the next header pins; it throws as `pinsOfHeaders`. */
  add(next: HeaderAtHeight): Pin[] {
    const last = this.#last;
    if (last !== undefined && next.height <= last.height) {
      throw new MalformedError(`height ${next.height} comes after height ${last.height}`);
    }
    this.#last = next;
    const continues = last !== undefined && next.height === last.height + 1;
    const { header, hash } = checkRun(continues ? [last, next] : [next]).at(-1)!;
    const own = { height: next.height, hash: toDisplayHex(hash), source: this.#source };
    if (continues) return [own];
    return [{ height: next.height - 1, hash: toDisplayHex(header.previousHash), source: this.#source }, own];
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
