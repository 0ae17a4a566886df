import type { OtaRolloutSpec } from '@kellet/crds';
import { expect } from 'chai';
import { resourceOf } from '../platform/kubernetes/kubernetes.ts';
import { applyRequest, lowerCase, type ManagedKind, type ManagedSpecs } from './manifest.ts';

describe('manifests as control applies them', () => {
  const specOf = <K extends ManagedKind>(kind: K, spec: ManagedSpecs[K]): Record<string, unknown> => {
    const { value } = applyRequest(kind, 'acme', resourceOf(kind, { name: 'x', namespace: 'kellet-acme' }, spec)).spec;
    return { ...value };
  };

  it('carry the identity of the resource', () => {
    const metadata = {
      name: 'cold-store-1a2b3',
      namespace: 'kellet-acme',
      uid: 'u',
      generation: 7,
      annotations: { 'kellet.dev/display-name': 'Cold store', 'kellet.dev/intent': 'i' },
    };
    expect(applyRequest('DeviceProfile', 'acme', resourceOf('DeviceProfile', metadata, {})).meta).to.deep.include({
      tenantId: 'acme',
      namespace: 'kellet-acme',
      name: 'cold-store-1a2b3',
      uid: 'u',
      generation: 7n,
      displayName: 'Cold store',
      intentId: 'i',
    });
  });

  it('give enum values the contract’s spelling', () => {
    expect(['Merkle', 'PerEvent', 'ApiKey', 'Psk', undefined].map(lowerCase)).to.deep.equal([
      'merkle',
      'per_event',
      'api_key',
      'psk',
      '',
    ]);
  });

  it('of a template', () => {
    expect(specOf('ProvisioningTemplate', { profileRef: { name: 'p' } })).to.deep.include({
      profileName: 'p',
      hardwareIdPattern: '*',
      oneTime: false,
      expiresInSeconds: 0,
      credentialType: '',
      defaultGroups: [],
      keySha256: '',
      keyBinding: '',
      suspended: false,
    });
    expect(
      specOf('ProvisioningTemplate', {
        profileRef: { name: 'p' },
        hardwareIdPattern: 'AA-*',
        keyUse: 'Once',
        expiresInSeconds: 60,
        credentialType: 'ApiKey',
        defaultGroups: ['g'],
        keySha256: 'ab',
        keyBinding: 'cd',
        suspended: true,
      }),
    ).to.deep.include({
      hardwareIdPattern: 'AA-*',
      oneTime: true,
      expiresInSeconds: 60,
      credentialType: 'api_key',
      defaultGroups: ['g'],
      keySha256: 'ab',
      keyBinding: 'cd',
      suspended: true,
    });
  });

  it('of a package', () => {
    const spec = specOf('OtaPackage', {
      type: 'Software',
      version: '1.2.0',
      artifact: { uri: 'https://example.test/a', sha256: 'ab', sizeBytes: 12, signature: 's' },
      compatibility: { deviceType: 'pump', minVersion: '1.0.0' },
    });
    expect(spec).to.deep.include({
      type: 'sw',
      version: '1.2.0',
      artifactUri: 'https://example.test/a',
      sha256: 'ab',
      sizeBytes: 12,
      signature: 's',
    });
    expect(spec['compatibility']).to.deep.include({ deviceType: 'pump', minVersion: '1.0.0', maxVersion: '' });
  });

  it('of a rollout', () => {
    const base: OtaRolloutSpec = { packageRef: { name: 'fw' }, targetProfileRef: { name: 'p' }, canaryPercent: 20 };
    expect(specOf('OtaRollout', base)).to.deep.include({
      packageName: 'fw',
      profileName: 'p',
      rollbackPackageName: '',
      canaryPercent: 20,
      failureThresholdPercent: 10,
      steps: [],
      paused: false,
      rolledBack: false,
    });
    const whole = specOf('OtaRollout', {
      ...base,
      rollbackPackageRef: { name: 'old' },
      failureThresholdPercent: 0,
      steps: [{ percent: 50, soakSeconds: 60, approval: true }],
      window: { start: '22:00', end: '04:00', days: ['Saturday'], timeZone: 'UTC' },
      paused: true,
      desiredState: 'RolledBack',
    });
    expect(whole).to.deep.include({
      rollbackPackageName: 'old',
      failureThresholdPercent: 0,
      paused: true,
      rolledBack: true,
    });
    expect((whole['steps'] as object[])[0]).to.deep.include({ percent: 50, soakSeconds: 60, approval: true });
    expect(whole['window']).to.deep.include({ start: '22:00', end: '04:00', days: ['sat'], timeZone: 'UTC' });
  });
});
