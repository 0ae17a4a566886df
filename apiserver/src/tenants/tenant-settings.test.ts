import { generateKeyPairSync } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { QuotasSchema, TenantDefaultsSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { checkDefaults, checkQuotas, checkSigningKeys } from './tenant-settings.ts';

const pem = (type: 'ed25519' | 'x25519', half: 'publicKey' | 'privateKey') => {
  const pair = type === 'ed25519' ? generateKeyPairSync('ed25519') : generateKeyPairSync('x25519');
  return half === 'publicKey'
    ? pair.publicKey.export({ format: 'pem', type: 'spki' }).toString()
    : pair.privateKey.export({ format: 'pem', type: 'pkcs8' }).toString();
};

describe('tenant settings', () => {
  it('accepts Ed25519 public keys', () => {
    checkSigningKeys([pem('ed25519', 'publicKey'), `\n${pem('ed25519', 'publicKey')}`]);
  });
  it('accepts few signing keys, and nothing but a key in each', () => {
    const key = pem('ed25519', 'publicKey');
    const most = `${key}${'x'.repeat(1024 - key.length)}`;
    checkSigningKeys(Array.from({ length: 16 }, () => most));
    expect(() => checkSigningKeys(Array.from({ length: 17 }, () => key))).to.throw(
      'trusted_signing_keys must have at most 16 entries',
    );
    expect(() => checkSigningKeys([key, `${most}x`])).to.throw('trusted_signing_keys[1]');
  });
  for (const [name, key] of [
    ['another curve', pem('x25519', 'publicKey')],
    ['a private key', pem('ed25519', 'privateKey')],
    ['text', 'ssh-ed25519 AAAA'],
    ['a cut key', pem('ed25519', 'publicKey').replace(/.{20}\n-----END/, '\n-----END')],
    ['nothing', ''],
  ] as const) {
    it(`rejects ${name} as a signing key`, () => {
      expect(() => checkSigningKeys([pem('ed25519', 'publicKey'), key])).to.throw('trusted_signing_keys[1]');
    });
  }

  for (const value of [-1, 1.5, 2 ** 53, NaN, Infinity]) {
    it(`rejects ${value} points per day`, () => {
      expect(() => checkQuotas(create(QuotasSchema, { pointsPerDay: value }))).to.throw('quotas.points_per_day');
    });
  }

  it('checks every part of the defaults', () => {
    const refused = (init: Parameters<typeof create<typeof TenantDefaultsSchema>>[1], field: string) =>
      expect(() => checkDefaults(create(TenantDefaultsSchema, init))).to.throw(field);
    checkDefaults(create(TenantDefaultsSchema, { tags: { a: 'b' }, offlineAfterSeconds: 60 }));
    refused({ tags: { '': 'b' } }, 'defaults.tags');
    refused({ telemetrySchema: { keys: { t: {} } } }, 'defaults.telemetry_schema');
    refused({ otaPolicy: { window: { start: 'x', end: '01:00' } } }, 'defaults.ota_policy.window');
    refused({ offlineAfterSeconds: 4_000_000 }, 'defaults.offline_after_seconds');
    refused({ anchoringPolicy: { mode: AnchoringPolicy_Mode.mode_unspecified } }, 'defaults.anchoring_policy.mode');
  });
});
