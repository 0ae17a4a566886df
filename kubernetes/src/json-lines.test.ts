import { expect } from 'chai';
import { jsonLines } from './json-lines.ts';

async function collect(chunks: Buffer[]): Promise<unknown[]> {
  async function* source(): AsyncGenerator<Buffer> {
    yield* chunks;
  }
  const values: unknown[] = [];
  for await (const value of jsonLines(source())) values.push(value);
  return values;
}

describe('jsonLines', () => {
  const text = Buffer.from('{"a":"ü"}\n\n[1,2]\n"x"\n');
  it('yields the same values however the bytes are chunked', async () => {
    for (let size = 1; size <= text.length; size += 1) {
      const chunks: Buffer[] = [];
      for (let at = 0; at < text.length; at += size) chunks.push(text.subarray(at, at + size));
      expect(await collect(chunks), `chunks of ${size}`).to.deep.equal([{ a: 'ü' }, [1, 2], 'x']);
    }
  });

  it('drops an incomplete last line', async () => {
    expect(await collect([Buffer.from('1\n{"a":')])).to.deep.equal([1]);
  });
});
