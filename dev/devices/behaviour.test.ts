import { expect } from 'chai';
import { applyUpdate, type Behaviour, type UpdateResult } from './behaviour.ts';

describe('behaviour of a simulated device', () => {
  const failing: Behaviour = { kind: 'fails', versions: ['1.2.0'] };
  const cases: [string, Behaviour, string, UpdateResult | undefined][] = [
    ['a healthy one', { kind: 'healthy' }, '1.1.0', { status: 'success', firmwareVersion: '1.1.0', error: '' }],
    [
      'one that fails',
      failing,
      '1.2.0',
      { status: 'failure', firmwareVersion: '1.2.0', error: 'self-test failed on 1.2.0' },
    ],
    [
      'one that fails, on another version',
      failing,
      '1.1.0',
      { status: 'success', firmwareVersion: '1.1.0', error: '' },
    ],
    ['a silent one', { kind: 'silent' }, '1.1.0', undefined],
    [
      'a liar',
      { kind: 'wrong-version', version: '0.9.0' },
      '1.1.0',
      { status: 'success', firmwareVersion: '0.9.0', error: '' },
    ],
  ];
  for (const [what, behaviour, version, expected] of cases) {
    it(what, () => expect(applyUpdate(behaviour, version)).to.deep.equal(expected));
  }
});
