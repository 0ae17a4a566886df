import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { PreSharedKeys } from './pre-shared-keys.ts';

const [first, second, third] = ['first', 'second', 'third'].map((name) => `${name} secret`.repeat(4)) as [
  string,
  string,
  string,
];

describe('pre-shared keys', () => {
  const before = new PreSharedKeys(first, '');
  const overlap = new PreSharedKeys(second, first);
  const after = new PreSharedKeys(second, '');
  const deviceId = newId();

  it('are the same in every process, and another for each identity', () => {
    const [one, other] = [before.newIdentity(deviceId), before.newIdentity(deviceId)];
    expect(one).to.match(new RegExp(`^${deviceId}\\.[0-9a-f]{16}\\.[0-9a-f]{8}$`));
    expect(before.keyOf(one)).to.deep.equal(new PreSharedKeys(first, '').keyOf(one));
    expect(before.keyOf(one)).to.have.length(32).and.not.to.deep.equal(before.keyOf(other));
  });

  it('keep working while the previous secret is configured beside a new one', () => {
    const old = before.newIdentity(deviceId);
    expect(overlap.keyOf(old)).to.deep.equal(before.keyOf(old));
    const rotated = overlap.newIdentity(deviceId);
    expect(overlap.keyOf(rotated)).to.deep.equal(after.keyOf(rotated));
    expect(after.keyOf(old), 'after the overlap').to.equal(undefined);
    expect(new PreSharedKeys(third, second).keyOf(old), 'after another rotation').to.equal(undefined);
    expect(new PreSharedKeys(third, second).keyOf(rotated)).to.deep.equal(after.keyOf(rotated));
  });

  it('of identities of earlier releases derive from the previous secret, or the only one', () => {
    const earlier = `${deviceId}.0123456789abcdef`;
    expect(before.keyOf(earlier)).to.have.length(32);
    expect(overlap.keyOf(earlier)).to.deep.equal(before.keyOf(earlier));
    expect(after.keyOf(earlier)).not.to.deep.equal(before.keyOf(earlier));
  });

  for (const text of [
    ...['', 'x', deviceId, `${deviceId}.`, `${deviceId}.0123456789abcde`, `${deviceId}.0123456789ABCDEF`],
    ...[
      `${deviceId}.0123456789abcdef.`,
      `${deviceId}.0123456789abcdef.0000000`,
      `${deviceId}.0123456789abcdef.00000000`,
    ],
    ...[` ${deviceId}.0123456789abcdef`, `${deviceId}.0123456789abcdef\n`],
  ]) {
    it(`do not exist for ${JSON.stringify(text)}`, () => expect(before.keyOf(text)).to.equal(undefined));
  }
});
