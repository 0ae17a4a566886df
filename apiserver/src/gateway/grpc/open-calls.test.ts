import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { maximumStreams, OpenCalls } from './open-calls.ts';

const device = (deviceId: string, tenantId = 'acme') => ({ kind: 'device', tenantId, deviceId }) as const;
const user = (tenantId = 'acme') => ({ kind: 'user', tenantId, deviceId: '' }) as const;

describe('the open streams of a process', () => {
  const stream = { isStream: true, end: () => undefined };
  const cases = [
    ['a device', device('a'), maximumStreams.ofDevice, [device('b'), device('a', 'other'), user()]],
    ['users and services of a tenant', user(), maximumStreams.ofOthers, [user('other'), device('a')]],
  ] as const;
  for (const [what, caller, most, others] of cases) {
    it(`are limited for ${what}, and for no others because of that`, () => {
      const calls = new OpenCalls(10_000);
      const leaves = Array.from({ length: most }, () => calls.enter(caller, stream));
      expect(() => calls.enter(caller, stream)).to.throw(KelletError, `at most ${most} streams`);
      calls.enter(caller, { ...stream, isStream: false });
      for (const other of others) calls.enter(other, stream);
      leaves[0]!.isOver();
      calls.enter(caller, stream);
      expect(() => calls.enter(caller, stream)).to.throw(KelletError);
      for (const { leave } of leaves.slice(1)) leave();
      calls.enter(caller, stream);
    });
  }
});

describe('the open calls of a process', () => {
  it('have a maximum, of which tenants that have fewer get their part', () => {
    const ended: string[] = [];
    const calls = new OpenCalls(6);
    const enter = (name: string, tenantId: string) =>
      calls.enter(device(name, tenantId), { isStream: false, end: () => ended.push(name) });
    const leaves = ['a1', 'a2', 'a3', 'a4', 'a5'].map((name) => enter(name, 'a'));
    enter('b1', 'b');
    expect(() => enter('a6', 'a')).to.throw(KelletError, 'too many calls are open');
    enter('b2', 'b');
    enter('c1', 'c');
    expect(ended).to.deep.equal(['a1', 'a2']);
    // Two or three each: nobody makes room for one who would then have more.
    expect(() => enter('b3', 'b')).to.throw(KelletError);
    enter('c2', 'c');
    expect(ended).to.deep.equal(['a1', 'a2', 'a3']);
    expect(() => enter('c3', 'c')).to.throw(KelletError);
    // What was ended is not counted again when it is over.
    for (const { isOver, leave } of leaves.slice(0, 3)) {
      isOver();
      leave();
    }
    expect(() => enter('c3', 'c')).to.throw(KelletError);
    leaves[3]!.leave();
    enter('c3', 'c');
    expect(ended).to.have.length(3);
  });

  it('count until they are read, and those that are not read make room first', () => {
    const ended: string[] = [];
    const calls = new OpenCalls(3);
    const enter = (name: string) => calls.enter(device(name), { isStream: false, end: () => ended.push(name) });
    const [, second, third] = ['1', '2', '3'].map(enter);
    third!.isOver();
    second!.isOver();
    enter('4');
    expect(ended).to.deep.equal(['3']);
    third!.leave();
    enter('5');
    expect(ended).to.deep.equal(['3', '2']);
    expect(() => enter('6')).to.throw(KelletError, 'too many calls are open');
  });
});
