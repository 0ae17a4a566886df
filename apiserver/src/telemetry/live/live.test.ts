import { expect } from 'chai';
import type { AcceptedPoint } from '../points/validate.ts';
import { LiveHub, LiveRoom } from './live.ts';

const tagged = (device: string, count: number, characters: number): AcceptedPoint[] => {
  const facts = { deviceId: device, name: device, type: '', effectiveTags: { tag: 'x'.repeat(characters) } };
  return Array.from(
    { length: count },
    (_, n) =>
      ({
        ...{ tenantId: 'acme', device: facts, time: { seconds: n, nanoseconds: 0 } },
        ...{ numericValues: { n }, stringValues: {}, dataHash: '' },
      }) as unknown as AcceptedPoint,
  );
};

describe('live points of devices with large tags', () => {
  const numbersOf = (texts: readonly string[]) =>
    texts.map((text) => (JSON.parse(text) as { numeric_values: { n: number } }).numeric_values.n);

  it('are the newest of a flush, as many as there is room for', () => {
    const hub = new LiveHub();
    const got: number[] = [];
    hub.subscribe('acme', 'd', (_deviceId, points) => got.push(...numbersOf(points)));
    hub.publish('acme', 'd', tagged('d', 500, 100_000));
    expect(got).to.deep.equal(Array.from({ length: 42 }, (_, index) => 458 + index));
  });

  it('are all of them if there is room', () => {
    expect(numbersOf(new LiveRoom().textsOf(tagged('d', 900, 1000)))).to.have.length(900);
  });

  it('of many devices of a tenant share the room of a flush, and what was made once takes none again', () => {
    const room = new LiveRoom();
    const devices = Array.from({ length: 10 }, (_, n) => tagged(`d${n}`, 100, 100_000));
    const counts = devices.map((points) => room.textsOf(points).length);
    expect(counts).to.deep.equal([42, 42, 42, 42, 0, 0, 0, 0, 0, 0]);
    expect(new LiveRoom().textsOf(devices[0]!)).to.have.length(42);
  });
});
