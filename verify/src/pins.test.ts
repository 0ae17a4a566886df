import { expect } from 'chai';
import { mineHeaders } from '../testing/sound-bundle.ts';
import { toDisplayHex, toHex } from './bytes.ts';
import { MalformedError } from './errors.ts';
import { blockHash } from './headers.ts';
import { formatHeadersFile, parseCheckpoint, parseHeadersFile, pinsOfHeaders } from './pins.ts';
import { sha256d } from './sha256.ts';

const headers = mineHeaders(sha256d(Uint8Array.of(1)), 5).map((raw, i) => ({ height: 100 + i, raw }));
const hash = toDisplayHex(blockHash(headers[0]!.raw));
const line = `100 ${toHex(headers[0]!.raw)}`;

describe('pins', () => {
  it('parses a checkpoint', () => {
    expect(parseCheckpoint(`100:${hash.toUpperCase()}`)).to.deep.equal({ height: 100, hash, source: 'checkpoint' });
  });

  for (const text of ['', '100', `100:${hash}0`, `-1:${hash}`, `1e2:${hash}`, `${hash}:100`, `100: ${hash}`]) {
    it(`rejects the checkpoint "${text}"`, () => expect(() => parseCheckpoint(text)).to.throw(MalformedError));
  }

  it('parses what it wrote and pins each block and the one before each run', () => {
    const read = parseHeadersFile(formatHeadersFile(headers));
    expect(read).to.deep.equal(headers);
    const pins = pinsOfHeaders([...headers.slice(0, 2), ...headers.slice(3)], 'file');
    expect(pins.map((pin) => pin.height)).to.deep.equal([99, 100, 101, 102, 103, 104]);
    const hashes = headers.map(({ raw }) => toDisplayHex(blockHash(raw)));
    expect(pins.slice(1).map((pin) => pin.hash)).to.deep.equal(hashes);
  });

  it('accepts CRLF, and a last line without a line break', () => {
    expect(parseHeadersFile(`${line}\r\n101 ${toHex(headers[1]!.raw)}`)).to.have.length(2);
  });

  for (const [name, text] of [
    ['nothing', ''],
    ['an empty line', `${line}\n\n`],
    ['a comment', `# mine\n${line}\n`],
    ['a short header', `${line.slice(0, -1)}\n`],
    ['no height', `${line.slice(4)}\n`],
    ['two spaces', line.replace(' ', '  ')],
  ] as const) {
    it(`rejects a headers file with ${name}`, () => expect(() => parseHeadersFile(text)).to.throw(MalformedError));
  }

  for (const [name, list] of [
    ['the same height twice', [headers[0]!, headers[0]!]],
    ['decreasing heights', [headers[1]!, headers[0]!]],
    ['a run of unlinked headers', [headers[0]!, { ...headers[2]!, height: 101 }]],
  ] as const) {
    it(`derives no pins from ${name}`, () => expect(() => pinsOfHeaders(list, 'file')).to.throw(MalformedError));
  }
});
