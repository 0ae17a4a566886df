import { expect } from 'chai';
import { Interest, interestBytes, mayWatch } from './live-interest.ts';

describe('interest in live points', () => {
  const keys = Array.from(
    { length: 1000 },
    (_, index) => `acme/0192f0e0-0000-7000-8000-${String(index).padStart(12, '0')}`,
  );

  it('is announced in constant size, or as an empty message', () => {
    const interest = new Interest();
    expect(interest.announcement()).to.have.length(0);
    for (const key of keys) interest.add(key);
    expect(interest.announcement()).to.have.length(interestBytes);
    for (const key of keys) interest.remove(key);
    expect(interest.announcement()).to.have.length(0);
  });

  it('contains every watched device and few others', () => {
    const interest = new Interest();
    for (const key of keys) interest.add(key);
    const bits = interest.announcement();
    expect(keys.every((key) => mayWatch(bits, key))).to.equal(true);
    const others = keys.map((key) => key.replace('acme', 'other'));
    expect(others.filter((key) => mayWatch(bits, key)).length).to.be.lessThan(60);
  });

  it('keeps a device that shares a bit with one that is no longer watched', () => {
    const interest = new Interest();
    const twice = keys[0]!;
    interest.add(twice);
    interest.add(twice);
    interest.add(keys[1]!);
    interest.remove(twice);
    expect(mayWatch(interest.announcement(), twice)).to.equal(true);
    interest.remove(twice);
    expect(mayWatch(interest.announcement(), twice)).to.equal(false);
  });

  it('does not change after it was announced', () => {
    const interest = new Interest();
    interest.add(keys[0]!);
    const bits = interest.announcement();
    interest.remove(keys[0]!);
    expect(mayWatch(bits, keys[0]!)).to.equal(true);
  });
});
