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
    [{ unsubscribe: live }, 'unsubscribe', [], undefined],
  ];
  for (const [message, verb, deviceIds, groupId] of good) {
    it(`reads ${JSON.stringify(message)}`, () => {
      const parsed = parseClientMessage(JSON.stringify(message));
      expect(parsed).to.deep.include({ verb, target: { deviceIds, groupId } });
    });
  }

  for (const verb of ['subscribe', 'unsubscribe']) {
    it(`reads ${verb} of alarms`, () => {
      expect(parseClientMessage(JSON.stringify({ [verb]: 'alarms' }))).to.deep.equal({
        ...{ verb, channel: 'alarms', given: {} },
      });
    });
  }

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
    ['{"subscribe":"rollouts"}', 'UNIMPLEMENTED'],
  ];
  for (const [text, code] of bad) {
    it(`rejects ${text}`, () =>
      expect(() => parseClientMessage(text))
        .to.throw(KelletError)
        .with.property('code', code));
  }
});
