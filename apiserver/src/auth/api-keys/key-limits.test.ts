import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { type AskedKey, type KeyLimits, limitsOfNewKey } from './key-limits.ts';

const now = 1_000_000;
const free: KeyLimits = { ipAllowlist: [], expiresAt: undefined };
const bound: KeyLimits = { ipAllowlist: ['10.0.0.0/8', '2001:db8::/32'], expiresAt: now + 60_000 };

describe('the limits of a new key', () => {
  const cases: [string, Partial<AskedKey>, KeyLimits, readonly string[], KeyLimits | string][] = [
    ['no request, unlimited creator', {}, free, [], free],
    ['no request, limited creator', {}, bound, [], bound],
    [
      'narrower limits',
      { ipAllowlist: ['10.1.0.0/16'], expiresInSeconds: 10 },
      bound,
      [],
      { ipAllowlist: ['10.1.0.0/16'], expiresAt: now + 10_000 },
    ],
    [
      'the same limits',
      { ipAllowlist: ['2001:db8::/32'], expiresInSeconds: 60 },
      bound,
      [],
      { ipAllowlist: ['2001:db8::/32'], expiresAt: now + 60_000 },
    ],
    ['other addresses', { ipAllowlist: ['10.1.0.0/16', '192.0.2.1'] }, bound, [], 'PERMISSION_DENIED'],
    ['more addresses', { ipAllowlist: ['0.0.0.0/0'] }, bound, [], 'PERMISSION_DENIED'],
    ['a later expiry', { expiresInSeconds: 61 }, bound, [], 'PERMISSION_DENIED'],
    ["addresses outside the tenant's", { ipAllowlist: ['192.0.2.1'] }, free, ['10.0.0.0/8'], 'INVALID_ARGUMENT'],
    [
      "addresses of the tenant's",
      { ipAllowlist: ['10.0.0.1'] },
      free,
      ['10.0.0.0/8'],
      { ipAllowlist: ['10.0.0.1'], expiresAt: undefined },
    ],
  ];
  for (const [name, asked, maker, ranges, want] of cases) {
    it(name, () => {
      const run = () => limitsOfNewKey({ ipAllowlist: [], expiresInSeconds: 0, ...asked }, maker, ranges, now);
      if (typeof want !== 'string') return expect(run()).to.deep.equal(want);
      expect(run).to.throw(KelletError).with.property('code', want);
    });
  }
});
