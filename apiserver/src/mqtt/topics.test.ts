import { expect } from 'chai';
import { type Action, actionOf, isOwnFilter, matches, qosOf, wantedBy } from './topics.ts';

describe('the topics of MQTT', () => {
  describe('that a device may publish', () => {
    const cases: readonly (readonly [string, Action | undefined])[] = [
      ['kellet/v1/telemetry', { kind: 'telemetry', deviceId: '' }],
      ['kellet/v1/gateway/d/telemetry', { kind: 'telemetry', deviceId: 'd' }],
      ['kellet/v1/commands/c/response', { kind: 'response', deviceId: '', correlationId: 'c' }],
      ['kellet/v1/gateway/d/commands/c/response', { kind: 'response', deviceId: 'd', correlationId: 'c' }],
      ['kellet/v1/attributes', { kind: 'attributes' }],
      ['kellet/v1/attributes/get/7', { kind: 'getAttributes', requestId: '7' }],
      [`kellet/v1/attributes/get/${'7'.repeat(129)}`, undefined],
      ['kellet/v1/ota/get/7', { kind: 'getUpdate', requestId: '7' }],
      ['kellet/v1/ota/chunk/p/0/65536', { kind: 'getChunk', packageId: 'p', offset: '0', length: '65536' }],
      ['kellet/v1/ota/report', { kind: 'report' }],
      ['kellet/v1/provision', { kind: 'claim' }],
      ['', undefined],
      ['kellet/v1', undefined],
      ['kellet/v1/', undefined],
      ['kellet/v1/telemetry/', undefined],
      ['/kellet/v1/telemetry', undefined],
      ['kellet/v2/telemetry', undefined],
      ['Kellet/v1/telemetry', undefined],
      ['kellet/v1/+', undefined],
      ['kellet/v1/gateway/+/telemetry', undefined],
      ['kellet/v1/gateway//telemetry', undefined],
      ['kellet/v1/gateway/../telemetry/x', undefined],
      ['kellet/v1/gateway/d/commands', undefined],
      ['kellet/v1/commands', undefined],
      ['kellet/v1/commands/c', undefined],
      ['kellet/v1/attributes/shared', undefined],
      ['kellet/v1/attributes/get', undefined],
      ['kellet/v1/provision/answer', undefined],
      ['kellet/v1/errors', undefined],
      ['kellet/v1/telemetry\0', undefined],
      ['$SYS/broker', undefined],
    ];
    for (const [topic, action] of cases) {
      it(`${JSON.stringify(topic.slice(0, 60))} is ${action?.kind ?? 'unknown'}`, () => {
        expect(actionOf(topic)).to.deep.equal(action);
      });
    }
  });

  describe('that a device may subscribe to', () => {
    for (const filter of [
      'kellet/v1/#',
      'kellet/v1/+',
      'kellet/v1/commands',
      'kellet/v1/gateway/+/commands',
      'kellet/v1/+/+/#',
      'kellet/v1/attributes/answer/+',
    ]) {
      it(`${filter} is granted`, () => expect(isOwnFilter(filter)).to.equal(true));
    }
    for (const filter of [
      '#',
      '+/v1/commands',
      'kellet/#',
      'kellet/+/commands',
      'kellet/v1',
      'kellet/v2/#',
      '$share/group/kellet/v1/commands',
      '$SYS/#',
      'kellet/v1/#/commands',
      'kellet/v1/command+',
      'kellet/v1/a#',
      'kellet/v1/\0',
      `kellet/v1/${'x'.repeat(257)}`,
      '',
    ]) {
      it(`${JSON.stringify(filter.slice(0, 40))} is refused`, () => expect(isOwnFilter(filter)).to.equal(false));
    }
  });

  it('match filters by levels', () => {
    const cases: readonly (readonly [string, string, boolean])[] = [
      ['a/b', 'a/b', true],
      ['a/+', 'a/b', true],
      ['a/+', 'a', false],
      ['a/+', 'a/b/c', false],
      ['a/#', 'a', true],
      ['a/#', 'a/b/c', true],
      ['a/+/c', 'a/b/c', true],
      ['a/+/c', 'a/b/d', false],
      ['a/b', 'a', false],
      ['a', 'a/b', false],
    ];
    for (const [filter, topic, isMatch] of cases)
      expect(matches(filter, topic), `${filter} ${topic}`).to.equal(isMatch);
  });

  it('are published with the highest QoS of the filters that match', () => {
    const subscriptions = new Map<string, 0 | 1>([
      ['a/+', 0],
      ['a/b', 1],
    ]);
    expect(qosOf(subscriptions, 'a/b')).to.equal(1);
    expect(qosOf(subscriptions, 'a/c')).to.equal(0);
    expect(qosOf(subscriptions, 'b')).to.equal(undefined);
  });

  describe('decide which commands a session wants:', () => {
    const cases: readonly (readonly [readonly string[], ReturnType<typeof wantedBy>])[] = [
      [[], { own: 'none', children: [] }],
      [['errors', 'ota/#'], { own: 'none', children: [] }],
      [['commands'], { own: 'all', children: [] }],
      [['attributes/shared'], { own: 'attributeChanges', children: [] }],
      [['#'], { own: 'all', children: 'all' }],
      [['+'], { own: 'all', children: [] }],
      [['gateway/+/commands'], { own: 'none', children: 'all' }],
      [['gateway/#'], { own: 'none', children: 'all' }],
      [['+/+/commands'], { own: 'none', children: 'all' }],
      [['+/#'], { own: 'all', children: 'all' }],
      [['gateway/x/commands', 'gateway/y/#'], { own: 'none', children: ['x', 'y'] }],
      [['gateway/x/commands', 'gateway/+/commands'], { own: 'none', children: 'all' }],
      [['gateway/x/telemetry', 'gateway/x'], { own: 'none', children: [] }],
      [['+/x/+'], { own: 'none', children: ['x'] }],
    ];
    for (const [filters, wanted] of cases) {
      it(JSON.stringify(filters), () => {
        expect(wantedBy(new Map(filters.map((filter) => [`kellet/v1/${filter}`, 1])))).to.deep.equal(wanted);
      });
    }
  });
});
