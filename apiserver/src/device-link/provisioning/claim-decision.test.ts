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
  const repeat: ClaimDecision = { action: 'repeat', deviceId: 'known' };

  const cases: [title: string, claim: Partial<Claim>, expected: ClaimDecision][] = [
    ['no such key', { key: undefined }, refuse('unknown_key')],
    ['no such key, known device', { key: undefined, existingDeviceId: 'known' }, refuse('unknown_key')],
    ['a good key, new device', {}, create(false)],
    ['a good key, known device', { existingDeviceId: 'known' }, repeat],
    ['disabled', { key: key({ enabled: false }) }, refuse('disabled')],
    ['disabled, known device', { key: key({ enabled: false }), existingDeviceId: 'known' }, refuse('disabled')],
    ['expired', { key: key({ expiresAt: before }) }, refuse('expired')],
    ['expires at this moment', { key: key({ expiresAt: now }) }, refuse('expired')],
    ['expired, known device', { key: key({ expiresAt: before }), existingDeviceId: 'known' }, refuse('expired')],
    ['not expired yet', { key: key({ expiresAt: after }) }, create(false)],
    ['pattern', { hardwareId: 'BB-1' }, refuse('pattern')],
    ['pattern, known device', { hardwareId: 'BB-1', existingDeviceId: 'known' }, refuse('pattern')],
    ['one-time, unused, new device', { key: key({ oneTime: true }) }, create(true)],
    ['one-time, unused, known device', { key: key({ oneTime: true }), existingDeviceId: 'known' }, repeat],
    ['used by another', { key: key({ oneTime: true, usedBy: 'AA-2' }) }, refuse('used')],
    [
      'used by another, known device',
      { key: key({ oneTime: true, usedBy: 'AA-2' }), existingDeviceId: 'known' },
      refuse('used'),
    ],
    ['used by this one', { key: key({ oneTime: true, usedBy: 'AA-1' }), existingDeviceId: 'known' }, repeat],
    ['used by this one, deleted since', { key: key({ oneTime: true, usedBy: 'AA-1' }) }, refuse('used')],
    ['used once, unlimited since', { key: key({ usedBy: 'AA-2' }) }, create(false)],
    [
      'used by this one, expired since',
      { key: key({ oneTime: true, usedBy: 'AA-1', expiresAt: before }), existingDeviceId: 'known' },
      refuse('expired'),
    ],
  ];
  for (const [title, claim, expected] of cases) {
    it(title, () => {
      const whole: Claim = { key: key(), hardwareId: 'AA-1', existingDeviceId: undefined, now, ...claim };
      expect(decideClaim(whole)).to.deep.equal(expected);
    });
  }
});
