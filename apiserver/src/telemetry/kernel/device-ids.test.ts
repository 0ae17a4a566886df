import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { deviceIdAt } from './device-ids.ts';

const read = (text: string, at = 0) => deviceIdAt(Buffer.from(text), at);
const bytesOf = (id: string) => Buffer.from(id.replaceAll('-', ''), 'hex');

describe('ids of devices in bodies', () => {
  it('are read wherever they begin', () => {
    const id = newId();
    const found = read(`"${id}"`, 1)!;
    expect(found.text).to.equal(id);
    const bytes = bytesOf(id);
    const words = [0, 4, 8, 12].map((at) => bytes.readInt32BE(at));
    expect([found.first, found.second, found.third, found.fourth]).to.deep.equal(words);
    expect(found.keyIn('acme')).to.equal(`acme/${id}`);
    expect(found.keyIn('other')).to.equal(`other/${id}`);
  });

  it('are the same object as long as not more than two of the same last digits take turns', () => {
    const [a, b] = ['0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a55', '0198c7a4-5b1e-7d3a-9c42-2f0e8d6b7a55'];
    const [first, second] = [read(a), read(b)];
    for (let turn = 0; turn < 3; turn += 1) {
      expect(read(a)).to.equal(first);
      expect(read(b)).to.equal(second);
    }
  });

  it('are told apart, whatever digits they share', () => {
    const id = '0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a55';
    const others = [...id].flatMap((digit, at) =>
      digit === '-' ? [] : [`${id.slice(0, at)}${digit === 'a' ? 'b' : 'a'}${id.slice(at + 1)}`],
    );
    for (const text of [id, ...others, id, ...others.reverse()]) expect(read(text)!.text).to.equal(text);
  });

  for (const [name, text] of [
    ['upper case', '0198C7A4-5b1e-7d3a-9c42-1f0e8d6b7a55'],
    ['another digit', '0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a5g'],
    ['a hyphen elsewhere', '0198c7a45-b1e-7d3a-9c42-1f0e8d6b7a55'],
    ['one digit less', '0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a5'],
    ['nothing', ''],
  ] as const) {
    it(`are not read from ${name}`, () => expect(read(text)).to.equal(undefined));
  }
});
