import { expect } from 'chai';
import { KelletError } from '../platform/errors.ts';
import { parseClientMessage } from './client-message.ts';

const live = 'telemetry.live';

describe('parseClientMessage', () => {
  const good: [object, string, string[], string | undefined][] = [
    [{ subscribe: live, device_id: 'a' }, 'subscribe', ['a'], undefined],
    [{ subscribe: live, device_ids: ['a', 'b'] }, 'subscribe', ['a', 'b'], undefined],
    [{ subscribe: live, group_id: 'g' }, 'subscribe', [], 'g'],
    [{ unsubscribe: live, device_id: 'a' }, 'unsubscribe', ['a'], undefined],
    [{ unsubscribe: live, device_id: 'A' }, 'unsubscribe', ['a'], undefined],
    [{ unsubscribe: live, device_ids: ['A', 'b'] }, 'unsubscribe', ['a', 'b'], undefined],
    [{ unsubscribe: live }, 'unsubscribe', [], undefined],
  ];
  for (const [message, verb, deviceIds, groupId] of good) {
    it(`reads ${JSON.stringify(message)}`, () => {
      const parsed = parseClientMessage(JSON.stringify(message));
      expect(parsed).to.deep.include({ verb, target: { deviceIds, groupId } });
    });
  }

  for (const verb of ['subscribe', 'unsubscribe']) {
    for (const channel of ['alarms', 'events']) {
      it(`reads ${verb} of ${channel}`, () => {
        expect(parseClientMessage(JSON.stringify({ [verb]: channel }))).to.deep.equal({ verb, channel, given: {} });
      });
    }
    it(`reads ${verb} of a rollout`, () => {
      expect(parseClientMessage(JSON.stringify({ [verb]: 'rollouts', rollout_id: 'A' }))).to.deep.equal({
        ...{ verb, channel: 'rollouts', rolloutId: 'a', given: { rollout_id: 'A' } },
      });
    });
  }
  it('reads unsubscribe of all rollouts', () => {
    expect(parseClientMessage('{"unsubscribe":"rollouts"}')).to.deep.include({ rolloutId: undefined });
  });

  const bad: [string, string][] = [
    ['{', 'INVALID_ARGUMENT'],
    ['[]', 'INVALID_ARGUMENT'],
    ['null', 'INVALID_ARGUMENT'],
    ['{}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry.live"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry.live","unsubscribe":"telemetry.live"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry.live","device_id":7}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry.live","device_id":"a","group_id":"g"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry.live","device_ids":[]}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry.live","device":"a"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"telemetry"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"alarms","device_id":"a"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"events","device_id":"a"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"rollouts"}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"rollouts","rollout_id":7}', 'INVALID_ARGUMENT'],
    ['{"subscribe":"rollouts","rollout_id":"a","device_id":"b"}', 'INVALID_ARGUMENT'],
  ];
  for (const [text, code] of bad) {
    it(`rejects ${text}`, () =>
      expect(() => parseClientMessage(text))
        .to.throw(KelletError)
        .with.property('code', code));
  }
});
