import { expect } from 'chai';
import type { AssignedPackage } from '../messages.ts';
import type { SlotState } from './slots.ts';
import * as slots from './slots.ts';

const assigned = (version: string): AssignedPackage => ({
  ...{ package_id: `p-${version}`, version, rollout_id: `r-${version}` },
  ...{ size_bytes: 1, sha256: '', signature: '' },
});
const factory = slots.factoryState('1.0');
const install = (state: SlotState, version: string) => slots.installed(slots.emptied(state), assigned(version));
const start = (state: SlotState, times = 1): SlotState =>
  times === 0 ? state : start(slots.started(state, 2).state, times - 1);
const success = (version: string) => ({
  ...{ rollout_id: `r-${version}`, status: 'success', firmware_version: version, error: '' },
});
const failure = (rollout: string, version: string, error: string) => ({
  ...{ rollout_id: `r-${rollout}`, status: 'failure', firmware_version: version, error },
});

describe('slots', () => {
  const trial = start(install(factory, '1.1'));
  const updated = slots.reported(slots.confirmed(trial));
  // State, then the slot and version that run next, whether on trial, and the result to report.
  const cases: [string, SlotState, string, string, object | undefined][] = [
    ['from the factory', factory, 'a', '1.0', undefined],
    ['being overwritten', slots.emptied(factory), 'a', '1.0', undefined],
    ['with a new image', install(factory, '1.1'), 'b', '1.0', undefined],
    ['with a new image that was started once', trial, 'b', '1.0', undefined],
    [
      'with a new image that was started too often',
      start(trial, 2),
      ...(['a', '1.0', failure('1.1', '1.0', 'not confirmed healthy after 2 starts')] as const),
    ],
    ['with a healthy new image', slots.confirmed(trial), 'b', '1.1', success('1.1')],
    [
      'with an unhealthy new image',
      slots.rolledBack(trial, 'no sensor'),
      'a',
      '1.0',
      failure('1.1', '1.0', 'no sensor'),
    ],
    ['after the report', updated, 'b', '1.1', undefined],
    ['with the third image', install(updated, '1.2'), 'a', '1.1', undefined],
    ['with a healthy third image', slots.confirmed(start(install(updated, '1.2'))), 'a', '1.2', success('1.2')],
    ['after a second confirmation', slots.confirmed(updated), 'b', '1.1', undefined],
    ['after a rollback without a trial', slots.rolledBack(updated, 'late'), 'b', '1.1', undefined],
    [
      'with a refused package',
      slots.refused(updated, assigned('1.3'), 'checksum mismatch'),
      ...(['b', '1.1', failure('1.3', '1.1', 'checksum mismatch')] as const),
    ],
    [
      'with a package that runs already, of another rollout',
      slots.alreadyRuns(updated, { ...assigned('1.1'), rollout_id: 'r-2' }),
      ...(['b', '1.1', { ...success('1.1'), rollout_id: 'r-2' }] as const),
    ],
  ];
  for (const [what, state, slot, version, result] of cases) {
    it(what, () => {
      expect(slots.started(state, 2).slot).to.equal(slot);
      expect(slots.activeVersion(state)).to.equal(version);
      expect(state.result).to.deep.equal(result);
    });
  }

  const plans: [string, SlotState, string, slots.UpdatePlan][] = [
    ['a new package', factory, '1.1', 'download'],
    ['the package on trial', trial, '1.1', 'wait for the trial'],
    ['another package than the one on trial', trial, '1.2', 'wait for the trial'],
    ['the package that runs', updated, '1.1', 'report success'],
    ['the package that runs, while another is on trial', install(updated, '1.2'), '1.1', 'wait for the trial'],
    ['a package that was rolled back', slots.rolledBack(trial, ''), '1.1', 'download'],
  ];
  for (const [what, state, version, expected] of plans) {
    it(`${expected}: ${what}`, () => expect(slots.planUpdate(state, `p-${version}`)).to.equal(expected));
  }
});
