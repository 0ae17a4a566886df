import {
  apiVersion,
  type Condition,
  type DeviceProfile,
  finalizer,
  type OtaPackage,
  type OtaRollout,
  type ProvisioningTemplate,
} from '@kellet/crds';
import { expect } from 'chai';
import type { CustomResource, NamespacedKind } from './resources.ts';
import type { Change } from './runtime/reflector.ts';
import { concernsItself, dependentsOf } from './triggers.ts';

const condition = (type: string, status: 'True' | 'False'): Condition => ({
  type,
  status,
  reason: 'x',
  message: '',
  lastTransitionTime: '',
  observedGeneration: 1,
});
const meta = (name: string, more: object = {}) => ({
  name,
  namespace: 'ns',
  uid: name,
  generation: 1,
  resourceVersion: '1',
  ...more,
});

const makeProfile = (ready: boolean, more: object = {}): DeviceProfile => ({
  apiVersion,
  kind: 'DeviceProfile',
  metadata: meta('profile', more),
  spec: {},
  status: { conditions: [condition('Ready', ready ? 'True' : 'False')] },
});
const makePackage = (name: string, ready: boolean, more: object = {}): OtaPackage => ({
  apiVersion,
  kind: 'OtaPackage',
  metadata: meta(name, more),
  spec: { type: 'Firmware', version: '1.0.0', artifact: { uri: 'https://x', sha256: '', sizeBytes: 1 } },
  status: { conditions: [condition('Ready', ready ? 'True' : 'False')] },
});
const makeTemplate = (synced: boolean): ProvisioningTemplate => ({
  apiVersion,
  kind: 'ProvisioningTemplate',
  metadata: meta('template'),
  spec: { profileRef: { name: 'profile' } },
  status: { conditions: [condition('Synced', synced ? 'True' : 'False')] },
});
const makeRollout = (
  name: string,
  synced: boolean,
  phase?: NonNullable<OtaRollout['status']>['phase'],
): OtaRollout => ({
  apiVersion,
  kind: 'OtaRollout',
  metadata: meta(name),
  spec: {
    packageRef: { name: 'package' },
    rollbackPackageRef: { name: 'back' },
    targetProfileRef: { name: 'profile' },
    canaryPercent: 1,
  },
  status: {
    phase,
    conditions: [condition('Synced', synced ? 'True' : 'False'), condition('Accepted', synced ? 'True' : 'False')],
  },
});

function cluster(...objects: CustomResource[]): Parameters<typeof dependentsOf>[0] {
  return {
    *inNamespace(kind: NamespacedKind | 'Tenant', namespace: string) {
      for (const object of objects)
        if (object.kind === kind && object.metadata.namespace === namespace) yield object as never;
    },
    firstRollouts: (_namespace, profile) =>
      objects.filter(
        (object): object is OtaRollout => object.kind === 'OtaRollout' && object.spec.targetProfileRef.name === profile,
      ),
  };
}

describe('dependentsOf', () => {
  const waiting = [makeTemplate(false), makeRollout('rollout', false)];
  const cases: [string, CustomResource[], Change<CustomResource>, string[]][] = [
    ['a profile appears', waiting, { type: 'added', object: makeProfile(true) }, ['ns/template', 'ns/rollout']],
    [
      'a profile becomes ready',
      waiting,
      { type: 'updated', previous: makeProfile(false), object: makeProfile(true) },
      ['ns/template', 'ns/rollout'],
    ],
    ['a profile stays ready', waiting, { type: 'updated', previous: makeProfile(true), object: makeProfile(true) }, []],
    ['a profile is not ready', waiting, { type: 'added', object: makeProfile(false) }, []],
    [
      'no waiting resources',
      [makeTemplate(true), makeRollout('rollout', true)],
      { type: 'added', object: makeProfile(true) },
      [],
    ],
    ['a package becomes ready', waiting, { type: 'added', object: makePackage('package', true) }, ['ns/rollout']],
    ['a rollback package becomes ready', waiting, { type: 'added', object: makePackage('back', true) }, ['ns/rollout']],
    ['another package becomes ready', waiting, { type: 'added', object: makePackage('other', true) }, []],
    [
      'a rollout completes',
      [makeRollout('next', false)],
      {
        type: 'updated',
        previous: makeRollout('done', true, 'Active'),
        object: makeRollout('done', true, 'Completed'),
      },
      ['ns/next'],
    ],
    [
      'a rollout that blocks a deletion is deleted',
      [
        makeRollout('running', true),
        makePackage('package', true, { deletionTimestamp: 't', finalizers: [finalizer] }),
        makePackage('held by another', true, { deletionTimestamp: 't', finalizers: ['another.dev/hold'] }),
        makePackage('back', true),
      ],
      { type: 'deleted', object: makeRollout('done', true, 'Active') },
      ['ns/package'],
    ],
    [
      'a template that blocks a deletion is deleted',
      [makeProfile(true, { deletionTimestamp: 't', finalizers: [finalizer] })],
      { type: 'deleted', object: makeTemplate(true) },
      ['ns/profile'],
    ],
  ];
  for (const [name, objects, change, want] of cases) {
    it(name, () => expect(dependentsOf(cluster(...objects), change).map(({ key }) => key)).to.deep.equal(want));
  }
});

describe('concernsItself', () => {
  const before = makeProfile(true);
  const change = (metadata: object): Change<CustomResource> => ({
    type: 'updated',
    previous: before,
    object: { ...before, metadata: { ...before.metadata, resourceVersion: '2', ...metadata } },
  });
  const cases: [string, Change<CustomResource>, boolean, boolean][] = [
    ['added', { type: 'added', object: before }, true, true],
    ['deleted', { type: 'deleted', object: before }, true, true],
    ['spec edited', change({ generation: 2 }), false, true],
    ['deletion requested', change({ deletionTimestamp: 't' }), true, true],
    ['annotated', change({ annotations: { a: 'b' } }), true, true],
    ["the operator's own status", change({}), true, false],
    ['a status written by another client', change({}), false, true],
  ];
  for (const [name, given, own, want] of cases) it(name, () => expect(concernsItself(given, () => own)).to.equal(want));
});
