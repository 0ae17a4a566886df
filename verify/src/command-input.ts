// Reads the command's files with limits, so that no input, not even an endless one, exhausts memory.
import { createReadStream } from 'node:fs';
// As a whole: an older Node has no zstd.
import zlib from 'node:zlib';
import { MalformedError, messageOf } from './errors.ts';
import { HeaderPins, parseHeaderLine, type Pin } from './pins.ts';
import { isRolloutProof } from './rollout-schema.ts';

/** Maximum size of a bundle, many times that of real ones. */
const MAXIMUM_BUNDLE_BYTES = 16 * 1024 * 1024;

/** Longer than any line of a headers file. */
const MAXIMUM_LINE = 256;

/** Opens a file, or standard input for `-`, as a stream. */
function openInput(path: string): AsyncIterable<Buffer> {
  return path === '-' ? process.stdin : createReadStream(path);
}

// Rejects ill-formed UTF-8 instead of replacing it.
const decode = (bytes: Buffer): string => new TextDecoder('utf-8', { fatal: true }).decode(bytes);

/**
 * Yields the text of a bundle or, one after another, the pages of a rollout proof, which has one page per line.
 * @throws {MalformedError} if a bundle or page is longer than 16 MiB
 * @throws TypeError if it is ill-formed UTF-8
 * @throws the system error if it cannot be read
 */
export async function* readDocuments(path: string): AsyncGenerator<{ text: string; isPage: boolean }> {
  let rest: Buffer[] = [];
  let length = 0;
  // Decided by the first line.
  let isPaged: boolean | undefined;
  for await (const part of openInput(path)) {
    let start = 0;
    if (isPaged !== false) {
      for (let end = part.indexOf(0x0a); end >= 0; end = part.indexOf(0x0a, start)) {
        const line = Buffer.concat([...rest, part.subarray(start, end + 1)]);
        isPaged ??= isPage(line);
        if (!isPaged) break;
        rest = [];
        length = 0;
        start = end + 1;
        yield { text: decode(line), isPage: true };
      }
    }
    rest.push(start === 0 ? part : part.subarray(start));
    length += part.length - start;
    if (length > MAXIMUM_BUNDLE_BYTES) throw new MalformedError(`longer than ${MAXIMUM_BUNDLE_BYTES} bytes`);
  }
  const last = Buffer.concat(rest);
  if (isPaged !== true || last.length > 0) yield { text: decode(last), isPage: isPaged ?? isPage(last) };
}

/** Reports whether a text is a page of a rollout proof. */
function isPage(bytes: Buffer): boolean {
  try {
    return isRolloutProof(JSON.parse(decode(bytes)));
  } catch {
    return false;
  }
}

/**
 * Yields the lines of a file.
 * @throws {MalformedError} if a line is longer than 16 MiB
 * @throws TypeError if it is ill-formed UTF-8
 * @throws the system error if it cannot be read
 */
export async function* readLines(path: string): AsyncGenerator<string> {
  let rest: Buffer[] = [];
  let length = 0;
  for await (const part of openInput(path)) {
    let start = 0;
    for (let end = part.indexOf(0x0a); end >= 0; end = part.indexOf(0x0a, start)) {
      yield decode(Buffer.concat([...rest, part.subarray(start, end)]));
      rest = [];
      length = 0;
      start = end + 1;
    }
    rest.push(part.subarray(start));
    length += part.length - start;
    if (length > MAXIMUM_BUNDLE_BYTES) throw new MalformedError(`longer than ${MAXIMUM_BUNDLE_BYTES} bytes`);
  }
  yield decode(Buffer.concat(rest));
}

const zstdMagic = Buffer.from([0x28, 0xb5, 0x2f, 0xfd]);

/**
 * Yields the lines of a file that may be compressed with zstd; for one that is longer than 16 MiB or ill-formed UTF-8 the reason,
 * without keeping it in memory.
 * @throws {MalformedError} if the file is compressed and this Node has no zstd
 * @throws the system error if it cannot be read or decompressed
 */
export async function* readBundleLines(path: string): AsyncGenerator<{ text: string } | { problem: string }> {
  let rest: Buffer[] = [];
  let length = 0;
  const line = () => {
    const parts = rest;
    const isLong = length > MAXIMUM_BUNDLE_BYTES;
    rest = [];
    length = 0;
    if (isLong) return { problem: `longer than ${MAXIMUM_BUNDLE_BYTES} bytes` };
    try {
      return { text: decode(Buffer.concat(parts)) };
    } catch (error) {
      return { problem: messageOf(error) };
    }
  };
  const add = (part: Buffer) => {
    length += part.length;
    if (length <= MAXIMUM_BUNDLE_BYTES) rest.push(part);
    else rest = [];
  };
  for await (const part of decompressed(openInput(path))) {
    let start = 0;
    for (let end = part.indexOf(0x0a); end >= 0; end = part.indexOf(0x0a, start)) {
      add(part.subarray(start, end));
      yield line();
      start = end + 1;
    }
    add(part.subarray(start));
  }
  if (length > 0) yield line();
}

/** Decompresses a stream if it begins as zstd does. */
async function* decompressed(input: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  const parts = input[Symbol.asyncIterator]();
  let begin = Buffer.alloc(0);
  while (begin.length < zstdMagic.length) {
    const next = await parts.next();
    if (next.done === true) break;
    begin = Buffer.concat([begin, next.value]);
  }
  if (begin.subarray(0, zstdMagic.length).equals(zstdMagic)) yield* decompressedFrames(begin, parts);
  else {
    yield begin;
    yield* { [Symbol.asyncIterator]: () => parts };
  }
}

/**
 * Decompresses all frames of a stream, as other programs do: Node's decompressor ignores what follows a frame, unless
 * that ends with a piece.
 */
async function* decompressedFrames(begin: Buffer, parts: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  // Not in every Node that runs this.
  const { createZstdDecompress } = zlib as Partial<typeof zlib>;
  if (createZstdDecompress === undefined) {
    throw new MalformedError(
      'this Node has no zstd: decompress the file, as with zstd -dc FILE | kellet-verify bundles -',
    );
  }
  for (let rest = begin; rest.length > 0;) {
    const output = createZstdDecompress();
    let taken: () => void;
    output.once('close', () => taken());
    const feed = async (): Promise<void> => {
      for (let before = 0; ; before = output.bytesWritten) {
        await new Promise<void>((resolve) => {
          taken = resolve;
          output.write(rest, taken);
        });
        rest = rest.subarray(output.bytesWritten - before);
        // Another decompressor takes the rest.
        if (rest.length > 0 || output.destroyed) return;
        const next = await parts.next();
        if (next.done === true) {
          output.end();
          return;
        }
        rest = next.value;
      }
    };
    const fed = feed().catch((error: Error) => void output.destroy(error));
    yield* output as AsyncIterable<Buffer>;
    await fed;
  }
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
