import { expect } from 'chai';
import { type Claim, type ClaimDecision, type ClaimKey, decideClaim } from './claim-decision.ts';

describe('claim decision', () => {
  const now = new Date('2026-01-01T12:00:00Z');
  const before = new Date(now.getTime() - 1);
  const after = new Date(now.getTime() + 1);
  const key = (overrides: Partial<ClaimKey> = {}): ClaimKey => ({
    enabled: true,
    expiresAt: undefined,
    oneTime: false,
    usedBy: undefined,
    hardwareIdPattern: 'AA-*',
    ...overrides,
  });
  const refuse = (cause: string) => ({ action: 'refuse', cause }) as ClaimDecision;
  const create = (useUp: boolean): ClaimDecision => ({ action: 'create', useUp });
  const known = { deviceId: 'known', hasCredentials: true };
  const child = { deviceId: 'child', hasCredentials: false };
  const take = (useUp: boolean): ClaimDecision => ({ action: 'take', deviceId: 'child', useUp });
  const repeat: ClaimDecision = { action: 'repeat', deviceId: 'known' };

  const cases: [title: string, claim: Partial<Claim>, expected: ClaimDecision][] = [
    ['no such key', { key: undefined }, refuse('unknown_key')],
    ['no such key, known device', { key: undefined, existing: known }, refuse('unknown_key')],
    ['a good key, new device', {}, create(false)],
    ['a good key, known device', { existing: known }, repeat],
    ['a good key, child of a gateway', { existing: child }, take(false)],
    ['one-time, unused, child of a gateway', { key: key({ oneTime: true }), existing: child }, take(true)],
    ['disabled, child of a gateway', { key: key({ enabled: false }), existing: child }, refuse('disabled')],
    ['pattern, child of a gateway', { hardwareId: 'BB-1', existing: child }, refuse('pattern')],
    [
      'used by this one, deleted since, child of a gateway',
      { key: key({ oneTime: true, usedBy: 'AA-1' }), existing: child },
      { action: 'repeat', deviceId: 'child' },
    ],
    ['disabled', { key: key({ enabled: false }) }, refuse('disabled')],
    ['disabled, known device', { key: key({ enabled: false }), existing: known }, refuse('disabled')],
    ['expired', { key: key({ expiresAt: before }) }, refuse('expired')],
    ['expires at this moment', { key: key({ expiresAt: now }) }, refuse('expired')],
    ['expired, known device', { key: key({ expiresAt: before }), existing: known }, refuse('expired')],
    ['not expired yet', { key: key({ expiresAt: after }) }, create(false)],
    ['pattern', { hardwareId: 'BB-1' }, refuse('pattern')],
    ['pattern, known device', { hardwareId: 'BB-1', existing: known }, refuse('pattern')],
    ['one-time, unused, new device', { key: key({ oneTime: true }) }, create(true)],
    ['one-time, unused, known device', { key: key({ oneTime: true }), existing: known }, repeat],
    ['used by another', { key: key({ oneTime: true, usedBy: 'AA-2' }) }, refuse('used')],
    ['used by another, known device', { key: key({ oneTime: true, usedBy: 'AA-2' }), existing: known }, refuse('used')],
    ['used by this one', { key: key({ oneTime: true, usedBy: 'AA-1' }), existing: known }, repeat],
    ['used by this one, deleted since', { key: key({ oneTime: true, usedBy: 'AA-1' }) }, refuse('used')],
    ['used once, unlimited since', { key: key({ usedBy: 'AA-2' }) }, create(false)],
    [
      'used by this one, expired since',
      { key: key({ oneTime: true, usedBy: 'AA-1', expiresAt: before }), existing: known },
      refuse('expired'),
    ],
  ];
  for (const [title, claim, expected] of cases) {
    it(title, () => {
      const whole: Claim = { key: key(), hardwareId: 'AA-1', existing: undefined, now, ...claim };
      expect(decideClaim(whole)).to.deep.equal(expected);
    });
  }
});
