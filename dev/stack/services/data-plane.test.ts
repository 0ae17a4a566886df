import { expect } from 'chai';
import { usesDevchain } from './data-plane.ts';

describe('the processor of the local stack', () => {
  const cases: [string, NodeJS.ProcessEnv, boolean][] = [
    ['devchain by default', {}, true],
    ['devchain beside another header source', { KELLET_HEADERS_URL: 'http://headers.test' }, true],
    ['devchain if the setting is empty', { KELLET_ARC_URL: '' }, true],
    ['that of KELLET_ARC_URL alone', { KELLET_ARC_URL: 'http://arc.test' }, false],
    [
      'that of KELLET_ARC_URL with token and headers',
      { KELLET_ARC_URL: 'http://arc.test', KELLET_ARC_TOKEN: 't', KELLET_HEADERS_URL: 'http://headers.test' },
      false,
    ],
  ];
  for (const [what, environment, expected] of cases) {
    it(`is ${what}`, () => expect(usesDevchain(environment)).to.equal(expected));
  }
});
