// Reads the command's files with limits, so that no input, not even an endless one, exhausts memory.
import { createReadStream } from 'node:fs';
import { MalformedError } from './errors.ts';
import { HeaderPins, parseHeaderLine } from './pins.ts';
import type { Pin } from './pins.ts';

/** Maximum size of a bundle, many times that of real ones. */
export const MAXIMUM_BUNDLE_BYTES = 16 * 1024 * 1024;

/** Longer than any line of a headers file. */
const MAXIMUM_LINE = 256;

/** Opens a file, or standard input for `-`, as a stream. */
function openInput(path: string): AsyncIterable<Buffer> {
  return path === '-' ? process.stdin : createReadStream(path);
}

/**
 * Returns the text of a bundle.
 * @throws {MalformedError} if it is longer than 16 MiB or ill-formed UTF-8
 * @throws the system error if it cannot be read
 */
export async function readBundleText(path: string): Promise<string> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of openInput(path)) {
    length += part.length;
    if (length > MAXIMUM_BUNDLE_BYTES) throw new MalformedError(`longer than ${MAXIMUM_BUNDLE_BYTES} bytes`);
    parts.push(part);
  }
  // Rejects ill-formed UTF-8 instead of replacing it.
  return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(parts));
}

/**
 * Checks a headers file line by line, whatever its length.
 * @returns its pins at the heights that `isWanted` selects
 * @throws {MalformedError} like `parseHeadersFile` and `pinsOfHeaders`
 * @throws the system error if it cannot be read
 */
export async function readHeaderPins(
  path: string,
  source: string,
  isWanted: (height: number) => boolean,
): Promise<Pin[]> {
  const pins = new HeaderPins(source);
  const wanted: Pin[] = [];
  let number = 0;
  const take = (line: string) => {
    number += 1;
    const header = parseHeaderLine(line.endsWith('\r') ? line.slice(0, -1) : line, number);
    for (const pin of pins.add(header)) if (isWanted(pin.height)) wanted.push(pin);
  };
  let rest = '';
  for await (const part of openInput(path)) {
    const lines = (rest + part.toString('latin1')).split('\n');
    rest = lines.pop()!;
    for (const line of lines) take(line);
    if (rest.length > MAXIMUM_LINE) throw new MalformedError(`line ${number + 1} is not HEIGHT HEADER-IN-HEX`);
  }
  if (rest !== '') take(rest);
  if (number === 0) throw new MalformedError('no headers');
  return wanted;
}
