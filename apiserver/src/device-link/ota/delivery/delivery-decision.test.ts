import { create } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { judgeCommand, mayDeliver } from './delivery-decision.ts';

describe('whether commands may be delivered', () => {
  const noon = new Date('2026-11-20T12:00:00Z');
  const closed = create(WindowSchema, { start: '02:00', end: '04:00' });
  const phases: [string, Parameters<typeof mayDeliver>[0], boolean][] = [
    ['an active rollout', { phase: 'active', outcome: '', window: undefined }, true],
    ['an active rollout outside its window', { phase: 'active', outcome: '', window: closed }, false],
    ['a paused rollout', { phase: 'paused', outcome: '', window: undefined }, false],
    ['a rollback outside the window', { phase: 'rolling_back', outcome: '', window: closed }, true],
    ['a finished rollback', { phase: 'completed', outcome: 'rolled_back', window: closed }, true],
    ['a finished rollout', { phase: 'completed', outcome: 'succeeded', window: undefined }, false],
    ['a cancelled rollout', { phase: 'completed', outcome: 'cancelled', window: undefined }, false],
  ];
  for (const [name, rollout, want] of phases) {
    it(`${want ? 'delivers' : 'holds'} the commands of ${name}`, () =>
      expect(mayDeliver(rollout, noon)).to.equal(want));
  }
});

describe('a rollout’s command that may be handed out', () => {
  type Given = [commandStatus: string, deviceState: string | undefined, sameCommand: boolean, isRollingBack?: boolean];
  const cases: [string, Given, string][] = [
    ['is delivered to a scheduled device', ['scheduled', 'scheduled', true], 'deliver'],
    ['is delivered again to a silent device', ['sent', 'sent', true], 'deliver'],
    ['is held from a device that reports progress', ['sent', 'downloading', true], 'hold'],
    ['is delivered first to a device that began by itself', ['scheduled', 'downloading', true], 'deliver'],
    ['is delivered to a device that timed out during rollback', ['scheduled', 'timed_out', true], 'deliver'],
    ['is withdrawn from a device with a newer command', ['sent', 'scheduled', false], 'withdraw'],
    ['is withdrawn from a device that left the rollout', ['sent', undefined, false], 'withdraw'],
    ['is withdrawn once the rollout rolls back', ['scheduled', 'scheduled', true, true], 'withdraw'],
    ['is not delivered again once the rollout rolls back', ['sent', 'sent', true, true], 'withdraw'],
  ];
  for (const [name, [status, state, isSame, isRollingBack = false], want] of cases) {
    it(name, () => {
      const device =
        state === undefined ? undefined : { state, correlation_id: isSame ? 'c1' : 'c2', rolling_back: false };
      expect(judgeCommand({ correlation_id: 'c1', status }, device, isRollingBack)).to.equal(want);
    });
  }
});
