import { provisionKeyBinding } from '@kellet/crds';
import { expect } from 'chai';
import {
  keyExpiry,
  type KeyFacts,
  keyState,
  mintProvisionKey,
  provisionKeyHash,
  type RegisteredKey,
  tenantOfKey,
} from './provision-key.ts';

describe('provision keys', () => {
  it('are opaque, 256 bits, and unique', () => {
    const keys = Array.from({ length: 50 }, mintProvisionKey);
    for (const key of keys) expect(key).to.match(/^pk_[A-Za-z0-9_-]{43}$/);
    expect(new Set(keys).size).to.equal(50);
  });

  it('are stored as SHA-256', () => {
    expect(provisionKeyHash('abc').toString('hex')).to.equal(
      'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad',
    );
  });

  const now = new Date('2026-01-01T12:00:00Z');
  const past = new Date('2026-01-01T11:59:59Z');
  const cases: [facts: Partial<KeyFacts>, state: string][] = [
    [{}, 'active'],
    [{ oneTime: true }, 'active'],
    [{ used: true }, 'active'],
    [{ oneTime: true, used: true }, 'used'],
    [{ expiresAt: past }, 'expired'],
    [{ expiresAt: now }, 'expired'],
    [{ expiresAt: new Date('2026-01-01T12:00:01Z') }, 'active'],
    [{ oneTime: true, used: true, expiresAt: past }, 'used'],
    [{ enabled: false }, 'disabled'],
    [{ enabled: false, oneTime: true, used: true, expiresAt: past }, 'disabled'],
  ];
  for (const [facts, state] of cases) {
    it(`${JSON.stringify(facts)} is ${state}`, () => {
      const whole = { enabled: true, oneTime: false, used: false, expiresAt: undefined, ...facts };
      expect(keyState(whole, now)).to.equal(state);
    });
  }

  it('expire relative to when they were first seen', () => {
    expect(keyExpiry(now, 60)).to.deep.equal(new Date('2026-01-01T12:01:00Z'));
    expect(keyExpiry(now, null)).to.equal(undefined);
  });
});

describe('tenantOfKey', () => {
  const key = 'pk_1';
  const named = (tenantId: string, binding: string | null, hashed = key): RegisteredKey => ({
    tenant_id: tenantId,
    key_hash: provisionKeyHash(hashed),
    binding: binding === null ? null : Buffer.from(binding, 'hex'),
  });
  const bound = (tenantId: string) => named(tenantId, provisionKeyBinding(tenantId, key));
  const copied = (tenantId: string, from: string) => named(tenantId, provisionKeyBinding(from, key));
  const cases: [string, RegisteredKey[], string | undefined][] = [
    ['named by no tenant', [], undefined],
    ['bound', [bound('a')], 'a'],
    ['bound to two: the first', [bound('a'), bound('b')], 'a'],
    ['a copied binding', [copied('b', 'a')], undefined],
    ['a copied binding first', [copied('b', 'a'), bound('a')], 'a'],
    ['used before bindings existed', [named('a', null)], 'a'],
    ['used before, and a copied binding', [copied('b', 'a'), named('a', null)], 'a'],
    ['used before, and bound elsewhere', [named('a', null), bound('b')], 'b'],
    ['another hash', [named('a', null, 'pk_2')], undefined],
  ];
  for (const [what, registered, want] of cases) {
    it(`${what}: ${want ?? 'none'}`, () => expect(tenantOfKey(key, registered)).to.equal(want));
  }
});
