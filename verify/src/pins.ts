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
  return lines.map((line, i) => {
    const match = /^(\d{1,10}) ([0-9a-fA-F]{160})$/.exec(line);
    if (match === null) throw new MalformedError(`line ${i + 1} is not HEIGHT HEADER-IN-HEX`);
    return { height: Number(match[1]), raw: fromHex(match[2]!) };
  });
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
  return runsOf(headers).flatMap((run) => {
    const chain = checkRun(run);
    const { height, header } = chain[0]!;
    const before = { height: height - 1, hash: toDisplayHex(header.previousHash), source };
    return [before, ...chain.map((block) => ({ height: block.height, hash: toDisplayHex(block.hash), source }))];
  });
}

function runsOf(headers: readonly HeaderAtHeight[]): HeaderAtHeight[][] {
  const runs: HeaderAtHeight[][] = [];
  let last = -1;
  for (const header of headers) {
    if (header.height <= last) throw new MalformedError(`height ${header.height} comes after height ${last}`);
    if (header.height === last + 1 && runs.length > 0) runs.at(-1)!.push(header);
    else runs.push([header]);
    last = header.height;
  }
  return runs;
}

function checkRun(run: readonly HeaderAtHeight[]): HeaderChain['headers'] {
  try {
    return checkHeaderChain(run).headers;
  } catch (error) {
    if (error instanceof RefutedError) throw new MalformedError(messageOf(error));
    throw error;
  }
}
