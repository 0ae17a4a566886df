import { apiVersion, type OtaRollout } from '@kellet/crds';
import { expect } from 'chai';
import type { Change } from './runtime/reflector.ts';
import { UnfinishedRollouts } from './unfinished-rollouts.ts';

const rollout = (
  name: string,
  { profile = 'sensors', namespace = 'ns', phase = undefined as 'Active' | 'Completed' | undefined } = {},
): OtaRollout => ({
  apiVersion,
  kind: 'OtaRollout',
  metadata: { name, namespace, uid: name },
  spec: { packageRef: { name: 'package' }, targetProfileRef: { name: profile }, canaryPercent: 10 },
  ...(phase && { status: { phase } }),
});
const added = (object: OtaRollout): Change<OtaRollout> => ({ type: 'added', object });
const updated = (object: OtaRollout): Change<OtaRollout> => ({ type: 'updated', object, previous: object });
const deleted = (object: OtaRollout): Change<OtaRollout> => ({ type: 'deleted', object });

describe('the rollouts of a profile that have not completed', () => {
  const cases: [string, Change<OtaRollout>[], string[]][] = [
    ['none', [], []],
    ['waiting and active ones', [added(rollout('a')), added(rollout('b', { phase: 'Active' }))], ['ns/a', 'ns/b']],
    ['of another profile', [added(rollout('a', { profile: 'pumps' }))], []],
    ['of another namespace', [added(rollout('a', { namespace: 'other' }))], []],
    ['a completed one', [added(rollout('a', { phase: 'Completed' }))], []],
    ['one that completes', [added(rollout('a')), updated(rollout('a', { phase: 'Completed' }))], []],
    [
      'one that is made again after it completed',
      [added(rollout('a', { phase: 'Completed' })), updated(rollout('a', { phase: 'Active' }))],
      ['ns/a'],
    ],
    ['one that is deleted', [added(rollout('a')), added(rollout('b')), deleted(rollout('a'))], ['ns/b']],
    ['one that moves here', [added(rollout('a', { profile: 'pumps' })), updated(rollout('a'))], ['ns/a']],
    ['one that moves away', [added(rollout('a')), updated(rollout('a', { profile: 'pumps' }))], []],
    [
      'one whose move is only seen when it is deleted',
      [added(rollout('a')), deleted(rollout('a', { profile: 'pumps' }))],
      [],
    ],
  ];
  for (const [name, changes, want] of cases) {
    it(`${name}: ${want.length === 0 ? 'none' : want.join(', ')}`, () => {
      const unfinished = new UnfinishedRollouts();
      for (const change of changes) unfinished.follow(change);
      expect([...unfinished.ofProfile('ns', 'sensors')]).to.have.members(want);
    });
  }
});
