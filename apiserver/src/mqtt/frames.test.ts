import { expect } from 'chai';
import { FrameError, FrameReader } from './frames.ts';

describe('the packets in the bytes of a connection', () => {
  const all = (chunks: readonly Buffer[], limit = 1000) => {
    const reader = new FrameReader();
    const found: Buffer[] = [];
    for (const chunk of chunks) {
      reader.add(chunk);
      for (let frame = reader.next(limit); frame; frame = reader.next(limit)) found.push(frame);
    }
    return { found, left: reader.bytes };
  };
  const packet = (length: number, header: number[]) =>
    Buffer.concat([Buffer.from([0x30, ...header]), Buffer.alloc(length, 7)]);

  it('are the same however they are cut', () => {
    const packets = [
      packet(0, [0]),
      packet(5, [5]),
      packet(200, [0xc8, 0x01]),
      packet(0, [0x80, 0x00]),
      packet(1, [1]),
    ];
    const bytes = Buffer.concat(packets);
    for (let size = 1; size <= bytes.length; size += 1) {
      const chunks: Buffer[] = [];
      for (let at = 0; at < bytes.length; at += size) chunks.push(bytes.subarray(at, at + size));
      const { found, left } = all(chunks);
      expect(found, `pieces of ${size}`).to.deep.equal(packets);
      expect(left).to.equal(0);
    }
  });

  it('are found as soon as they are complete', () => {
    expect(all([packet(5, [5]).subarray(0, 6)])).to.deep.equal({ found: [], left: 6 });
    expect(all([Buffer.from([0x30])])).to.deep.equal({ found: [], left: 1 });
    expect(all([Buffer.from([0x30, 0x80])])).to.deep.equal({ found: [], left: 2 });
  });

  it('keep little memory besides their bytes: what arrives byte by byte, and what follows a large one', () => {
    const reader = new FrameReader();
    const kept = () =>
      (reader as unknown as { readonly pieces: Buffer[] }).pieces.map(({ buffer }) => buffer.byteLength);
    const large = packet(100_000, [0xa0, 0x8d, 0x06]);
    for (const byte of large.subarray(0, -1)) {
      reader.add(Buffer.of(byte));
      expect(reader.next(200_000)).to.equal(undefined);
    }
    expect(kept().length).to.be.below(60);
    reader.add(Buffer.concat([large.subarray(-1), packet(5, [5]).subarray(0, 3)]));
    expect(reader.next(200_000)).to.deep.equal(large);
    expect(kept()).to.deep.equal([3]);
    reader.add(packet(5, [5]).subarray(3));
    expect(reader.next(200_000)).to.deep.equal(packet(5, [5]));
  });

  for (const [title, bytes, isTooLarge] of [
    ['above the limit, by the length alone', [0x30, 0xe8, 0x07], true],
    ['with a length of five bytes', [0x30, 0xff, 0xff, 0xff, 0xff, 0x01], false],
  ] as const) {
    it(`are refused ${title}`, () => {
      expect(() => all([Buffer.from(bytes)]))
        .to.throw(FrameError)
        .with.property('isTooLarge', isTooLarge);
    });
  }

  it('may be exactly as large as the limit', () => {
    expect(all([packet(998, [0xe6, 0x07])], 1001).found).to.have.length(1);
    expect(() => all([packet(998, [0xe6, 0x07])], 1000)).to.throw(FrameError);
  });
});
