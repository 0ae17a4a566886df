import type { ManagedFields } from '@kellet/crds';
import { expect } from 'chai';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import { foreignManager, keptByAnother, otherOwnerOf, ownValues } from './field-ownership.ts';

const entry = (manager: string, operation: 'Apply' | 'Update', ...parents: string[]): ManagedFields => ({
  manager,
  operation,
  fieldsV1: Object.fromEntries(parents.map((parent) => [`f:${parent}`, { 'f:type': {} }])),
});

const resource = (createdBy: 'api' | undefined, ...managedFields: ManagedFields[]): KubernetesObject => ({
  apiVersion: 'kellet.dev/v1alpha1',
  kind: 'DeviceProfile',
  metadata: { name: 'p', labels: createdBy ? { 'kellet.dev/created-by': createdBy } : {}, managedFields },
  spec: {},
});

describe('the manager of a resource', () => {
  const api = entry('kellet-api', 'Update', 'spec');
  const cases: [string, KubernetesObject, string | undefined][] = [
    ['created through REST', resource('api', api), undefined],
    ['created through REST, then patched', resource('api', api, entry('kubectl-patch', 'Update', 'spec')), undefined],
    [
      'created through REST, then labelled',
      resource('api', api, entry('kubectl-label', 'Update', 'metadata')),
      undefined,
    ],
    [
      'created through REST, then applied on the server side',
      resource('api', api, entry('argocd', 'Apply', 'spec')),
      'argocd',
    ],
    [
      'created through REST, then applied by kubectl',
      resource('api', api, entry('kubectl-client-side-apply', 'Update', 'spec')),
      'kubectl-client-side-apply',
    ],
    ['created with kubectl', resource(undefined, entry('kubectl-create', 'Update', 'spec')), 'kubectl-create'],
    [
      'only the status written by another',
      resource(undefined, { ...entry('x', 'Update', 'spec'), subresource: 'status' }),
      undefined,
    ],
    ['fields owned only by the operator', resource(undefined, entry('kellet-operator', 'Apply', 'spec')), undefined],
  ];
  for (const [what, object, manager] of cases) {
    it(`${what}: ${manager ?? 'REST'}`, () => expect(foreignManager(object)).to.equal(manager));
  }
});

describe('values that only another manager can remove', () => {
  const object: KubernetesObject = {
    ...resource('api'),
    metadata: {
      name: 'p',
      managedFields: [
        { manager: 'kellet-api', fieldsV1: { 'f:spec': { 'f:type': {}, 'f:defaultTags': { 'f:mine': {} } } } },
        {
          manager: 'kubectl-patch',
          fieldsV1: {
            'f:spec': {
              'f:defaultTags': { '.': {}, 'f:site': {}, 'f:a b': {} },
              'f:telemetrySchema': { 'f:keys': { '.': {}, 'f:kub': { '.': {}, 'f:type': {} } } },
              'f:defaultGroups': { '.': {}, 'v:"north"': {} },
            },
          },
        },
      ],
    },
  };
  const cases: [string, string, unknown, string | undefined][] = [
    ['a field that only REST owns', 'type', undefined, undefined],
    ['a map without their key', 'defaultTags', { mine: '1', 'a b': '2' }, 'spec.defaultTags.site'],
    ['a map without their key that is not an identifier', 'defaultTags', { site: '1' }, 'spec.defaultTags["a b"]'],
    ['a map with their keys', 'defaultTags', { site: '1', 'a b': '2' }, undefined],
    ['a whole map', 'defaultTags', undefined, 'spec.defaultTags'],
    ['a nested map', 'telemetrySchema', { keys: { x: {} } }, 'spec.telemetrySchema.keys.kub'],
    ['a field of a nested map', 'telemetrySchema', { keys: { kub: {} } }, 'spec.telemetrySchema.keys.kub.type'],
    ['a nested field', 'telemetrySchema.keys', undefined, 'spec.telemetrySchema.keys'],
    ['a nested field that they do not own', 'telemetrySchema.additionalKeys', undefined, undefined],
    ['a set without their value', 'defaultGroups', ['south'], 'spec.defaultGroups'],
    ['a set with their value', 'defaultGroups', ['south', 'north'], undefined],
  ];
  for (const [what, field, wanted, path] of cases) {
    it(`${what}: ${path ?? 'none'}`, () =>
      expect(keptByAnother(object, field.split('.'), wanted)).to.deep.equal(
        path && { path, manager: 'kubectl-patch' },
      ));
  }
});

describe('the values that REST owns', () => {
  const object: KubernetesObject = {
    ...resource('api'),
    metadata: {
      name: 'p',
      managedFields: [
        {
          manager: 'kellet-api',
          fieldsV1: {
            'f:spec': {
              'f:type': {},
              'f:otaPolicy': { '.': {}, 'f:maxAttempts': {}, 'f:window': { 'f:days': { '.': {}, 'v:"Monday"': {} } } },
            },
          },
        },
        { manager: 'argocd', fieldsV1: { 'f:spec': { 'f:otaPolicy': { 'f:requireSignature': {} } } } },
        { manager: 'kellet-api', subresource: 'status', fieldsV1: { 'f:spec': { 'f:offlineAfterSeconds': {} } } },
        { manager: 'kellet-api', fieldsV1: { 'f:spec': { 'f:otaPolicy': { 'f:window': { 'f:start': {} } } } } },
      ],
    },
  };

  it('exclude those of other managers at every depth', () => {
    const spec = {
      type: 'pump',
      offlineAfterSeconds: 60,
      otaPolicy: {
        maxAttempts: 3,
        requireSignature: true,
        window: { start: '22:00', end: '04:00', days: ['Monday', 'Sunday'] },
      },
    };
    expect(ownValues(object, spec, 'spec')).to.deep.equal({
      type: 'pump',
      otaPolicy: { maxAttempts: 3, window: { start: '22:00', days: ['Monday'] } },
    });
    expect(ownValues(object, undefined, 'metadata', 'labels')).to.deep.equal({});
  });
});

describe('the other owner of a field', () => {
  const object: KubernetesObject = {
    ...resource(undefined),
    metadata: {
      name: 't',
      managedFields: [
        { manager: 'kellet-api', fieldsV1: { 'f:spec': { 'f:name': {}, 'f:quotas': { 'f:devices': {} } } } },
        {
          manager: 'kubectl',
          fieldsV1: {
            'f:metadata': { 'f:labels': {} },
            'f:spec': {
              'f:ipAllowlist': {},
              'f:defaults': { '.': {}, 'f:tags': { 'f:site': {} }, 'f:otaPolicy': {} },
            },
          },
        },
        { manager: 'operator', subresource: 'status', fieldsV1: { 'f:spec': { 'f:mfaRequired': {} } } },
      ],
    },
  };
  const cases: [string, string, string | undefined][] = [
    ['owned', 'ipAllowlist', 'kubectl'],
    ['owned within', 'defaults.tags', 'kubectl'],
    ['within what is owned whole', 'defaults.otaPolicy.maxAttempts', 'kubectl'],
    ['beside what is owned', 'defaults.tags.company', undefined],
    ['ours', 'quotas.devices', undefined],
    ['of nobody', 'batchSeconds', undefined],
    ['below one of nobody', 'batchSeconds.x', undefined],
    ['owned in the status alone', 'mfaRequired', undefined],
  ];
  for (const [what, path, manager] of cases) {
    it(`${path} (${what}): ${manager ?? 'none'}`, () =>
      expect(otherOwnerOf(object, path.split('.'))).to.equal(manager));
  }
});
