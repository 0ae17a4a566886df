import { create } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { planStages } from './plan.ts';

describe('the stages of a plan', () => {
  const step = (percent: number, soakSeconds = 0) => ({ percent, soakSeconds });
  type Given = [
    eligible: number,
    canaryPercent: number,
    steps: ReturnType<typeof step>[],
    maxPerMinute?: number,
    deviceSeconds?: number,
  ];
  const cases: [string, Given, [first: number, added: number, scheduled: number, seconds: number][]][] = [
    ['a canary alone', [1000, 10, []], [[1, 100, 100, 0]]],
    ['a canary of at least one device', [3, 1, []], [[1, 1, 1, 0]]],
    ['no device', [0, 10, [step(100)]], [[1, 0, 0, 0], [1, 0, 0, 0]]], // prettier-ignore
    ['steps add what the ones before did not cover', [1000, 10, [step(50), step(100)]], [[1, 100, 100, 0], [101, 400, 500, 0], [501, 500, 1000, 0]]], // prettier-ignore
    ['a step that rounds to the same devices', [3, 40, [step(50), step(100)]], [[1, 2, 2, 0], [3, 0, 2, 0], [3, 1, 3, 0]]], // prettier-ignore
    ['a step begins once it has soaked', [10, 10, [step(50, 60), step(100, 30)]], [[1, 1, 1, 0], [2, 4, 5, 60], [6, 5, 10, 90]]], // prettier-ignore
    ['and once the devices before it have finished', [10, 10, [step(50, 60), step(100)], 0, 240], [[1, 1, 1, 0], [2, 4, 5, 300], [6, 5, 10, 540]]], // prettier-ignore
    ['a step without devices waits for none', [3, 40, [step(50, 5), step(100)], 0, 240], [[1, 2, 2, 0], [3, 0, 2, 245], [3, 1, 3, 245]]], // prettier-ignore
    ['and once the commands before it are out', [100, 50, [step(100, 5)], 10], [[1, 50, 50, 0], [51, 50, 100, 305]]], // prettier-ignore
  ];
  for (const [name, [eligible, canaryPercent, steps, maxPerMinute = 0, deviceSeconds = 0], want] of cases) {
    it(name, () => {
      const request = { canaryPercent, maxPerMinute, steps: steps as never };
      const stages = planStages(eligible, request, { now: new Date(0), window: undefined, deviceSeconds });
      expect(stages.map(({ first, added, scheduled, seconds }) => [first, added, scheduled, seconds])).to.deep.equal(
        want,
      );
      expect(stages.map(({ percent }) => percent)).to.deep.equal([canaryPercent, ...steps.map((each) => each.percent)]);
    });
  }

  it('waits for the window, before and between its stages', () => {
    const window = create(WindowSchema, { start: '02:00', end: '04:00' });
    // An hour before it opens; the canary of 180 devices takes three hours, of which the window has two.
    const stages = planStages(
      1000,
      { canaryPercent: 18, maxPerMinute: 1, steps: [step(50, 3600), step(51, 3 * 3600)] as never },
      { now: new Date('2026-11-20T01:00:00Z'), window, deviceSeconds: 0 },
    );
    const hours = stages.map(({ seconds }) => seconds / 3600);
    expect(hours[0]).to.equal(1);
    // Out at 03:00 the next day, soaked at 04:00, when the window closes.
    expect(hours[1]).to.equal(49);
  });
});
