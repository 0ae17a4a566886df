import { expect } from 'chai';
import { verifiedFinding } from './controllers/ota-package.ts';
import { templateRequeue } from './controllers/provisioning-template.ts';
import { toCamelCase, toMeta, toMilliseconds } from './messages.ts';

describe('messages', () => {
  for (const [camel, lower] of [
    ['Merkle', 'merkle'],
    ['PerEvent', 'per_event'],
    ['RollingBack', 'rolling_back'],
    ['ApiKey', 'api_key'],
  ] as const) {
    it(`converts ${lower} to ${camel}`, () => expect(toCamelCase(lower)).to.equal(camel));
  }

  it('returns undefined for zero values', () => {
    expect(toCamelCase('')).to.equal(undefined);
    expect(toMilliseconds(undefined)).to.equal(undefined);
    expect(toMilliseconds({ seconds: 2n, nanos: 999_999_999 })).to.equal(2999);
  });

  it('includes display name and intent of a resource created through REST', () => {
    const annotations = { 'kellet.dev/display-name': 'My Sensors', 'kellet.dev/intent': 'i1' };
    expect(
      toMeta('acme', {
        metadata: {
          name: 'my-sensors-1',
          namespace: 'ns',
          uid: 'u',
          generation: 3,
          resourceVersion: '41',
          annotations,
        },
      }),
    ).to.deep.equal({
      tenant_id: 'acme',
      namespace: 'ns',
      name: 'my-sensors-1',
      uid: 'u',
      generation: 3n,
      resource_version: '41',
      display_name: 'My Sensors',
      intent_id: 'i1',
    });
  });
});

describe('verifiedFinding', () => {
  const observed = (status: string, more = {}) => ({
    status,
    checksum_verified: false,
    signature_verified: false,
    size_bytes: 0,
    message: 'm',
    ...more,
  });
  for (const [name, given, uri, want] of [
    ['fetching', observed('uploading'), 'https://x', 'Unknown Fetching'],
    ['awaiting upload', observed('uploading'), 'upload://', 'Unknown AwaitingUpload'],
    ['available', observed('available', { checksum_verified: true }), 'https://x', 'True ChecksumVerified'],
    [
      'signed',
      observed('available', { checksum_verified: true, signature_verified: true }),
      'https://x',
      'True SignatureVerified',
    ],
    ['deprecated', observed('deprecated', { checksum_verified: true }), 'https://x', 'True ChecksumVerified'],
    ['wrong checksum', observed('rejected'), 'https://x', 'False ChecksumMismatch'],
    ['wrong signature', observed('rejected', { checksum_verified: true }), 'https://x', 'False SignatureInvalid'],
  ] as const) {
    it(`${name}: ${want}`, () => {
      const finding = verifiedFinding(given, uri);
      expect(`${finding.status} ${finding.reason}`).to.equal(want);
    });
  }
});

describe('templateRequeue', () => {
  const template = {
    apiVersion: 'kellet.dev/v1alpha1',
    kind: 'ProvisioningTemplate',
    metadata: { name: 't' },
    spec: { profileRef: { name: 'p' } },
  } as const;
  const observed = (key_state: string, seconds?: number) => ({
    key_state,
    claims: 0,
    key_expires_at: seconds === undefined ? undefined : { seconds: BigInt(seconds), nanos: 0 },
  });

  it('requeues at the expiry of an active key, after at most a day', () => {
    expect(templateRequeue(template, observed('active', 100), 40_000)).to.equal(60_500);
    expect(templateRequeue(template, observed('active', 100), 200_000)).to.equal(1000);
    const hash = { ...template, spec: { ...template.spec, keySha256: 'a'.repeat(64) } };
    expect(templateRequeue(hash, observed('active', 10_000_000), 0)).to.equal(86_400_000);
    expect(templateRequeue(template, observed('expired', 100), 200_000)).to.equal(undefined);
    expect(templateRequeue(hash, observed('active'), 0)).to.equal(undefined);
  });

  it('rechecks the Secret of a generated key while the key is usable', () => {
    expect(templateRequeue(template, observed('active'), 0)).to.equal(300_000);
    expect(templateRequeue(template, observed('disabled'), 0)).to.equal(300_000);
    expect(templateRequeue(template, observed('used'), 0)).to.equal(undefined);
  });

  it('rereads a referenced Secret', () => {
    const spec = { profileRef: { name: 'p' }, keySecretRef: { name: 's' } };
    expect(templateRequeue({ ...template, spec }, observed('active'), 0)).to.equal(300_000);
  });
});
