import { apiVersion, type OtaRollout } from '@kellet/crds';
import { expect } from 'chai';
import { firstOfTypes, rolloutAhead } from './rollout-precedence.ts';

interface Given {
  profile?: string;
  packageName?: string;
  created?: number;
  phase?: NonNullable<OtaRollout['status']>['phase'];
  accepted?: boolean;
  deleted?: boolean;
}

function makeRollout(name: string, given: Given = {}): OtaRollout {
  const { profile = 'sensors', packageName = 'firmware-2', created = 0, phase, accepted = phase !== undefined } = given;
  return {
    apiVersion,
    kind: 'OtaRollout',
    metadata: {
      name,
      uid: name,
      creationTimestamp: `2026-01-01T00:00:0${created}Z`,
      ...(given.deleted && { deletionTimestamp: '2026-01-02T00:00:00Z' }),
    },
    spec: { packageRef: { name: packageName }, targetProfileRef: { name: profile }, canaryPercent: 10 },
    status: {
      phase,
      conditions: [
        { type: 'Accepted', status: accepted ? 'True' : 'False', reason: 'x', message: '', lastTransitionTime: '' },
      ],
    },
  };
}

describe('rolloutAhead', () => {
  const types: Record<string, string> = { 'firmware-2': 'Firmware', 'firmware-3': 'Firmware', 'app-1': 'Software' };
  const cases: [string, Given, Record<string, Given>, string | undefined][] = [
    ['alone', {}, {}, undefined],
    ['an older one', { created: 2 }, { other: { created: 1 } }, 'other'],
    ['a younger one', { created: 1 }, { other: { created: 2 } }, undefined],
    ['created in the same second, by name', { created: 1 }, { a: { created: 1 }, z: { created: 1 } }, 'a'],
    ['an older one of another package of the type', { created: 2 }, { other: { packageName: 'firmware-3' } }, 'other'],
    ['an older one of another type', { created: 2 }, { other: { packageName: 'app-1' } }, undefined],
    ['an older one of another profile', { created: 2 }, { other: { profile: 'pumps' } }, undefined],
    ['an older one with an unknown package', { created: 2 }, { other: { packageName: 'nothing' } }, undefined],
    ['a completed one', { created: 2 }, { other: { phase: 'Completed' } }, undefined],
    ['one that is being deleted', { created: 2 }, { other: { phase: 'Active', deleted: true } }, undefined],
    ['a younger one that has begun', { created: 1 }, { other: { created: 2, phase: 'Active' } }, 'other'],
    ['a younger one that is paused', { created: 1 }, { other: { created: 2, phase: 'Paused' } }, 'other'],
    ['it has itself begun', { created: 2, phase: 'Active' }, { other: { created: 1 } }, undefined],
    [
      'one that has begun takes precedence over an older one',
      { created: 3 },
      { old: { created: 1 }, run: { created: 2, phase: 'Active' } },
      'run',
    ],
  ];
  for (const [name, given, others, want] of cases) {
    it(`${name}: ${want ?? 'none'}`, () => {
      const rollout = makeRollout('mine', given);
      const all = [rollout, ...Object.entries(others).map(([other, its]) => makeRollout(other, its))];
      const typeOf = (packageName: string): string | undefined => types[packageName];
      expect(rolloutAhead(rollout, all, typeOf)?.metadata.name).to.equal(want);
      // The cluster has them by profile, without completed ones.
      const ofProfile = all.filter(
        ({ spec, status }) => spec.targetProfileRef.name === 'sensors' && status?.phase !== 'Completed',
      );
      const first = [...firstOfTypes(ofProfile, typeOf)];
      expect(rolloutAhead(rollout, first, typeOf)?.metadata.name).to.equal(want);
      expect(first.length).to.be.at.most(2);
    });
  }
});
