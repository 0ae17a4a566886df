import { expect } from 'chai';
import { failureCause, flushFailure } from './flush-failure.ts';

describe('failed flushes', () => {
  const cases: [what: string, error: object, kind: string, cause: string | undefined][] = [
    ['a full disk', { code: '53100' }, 'later', 'disk_full'],
    ['a read-only database', { code: '25006' }, 'later', 'other'],
    ['a table that is missing', { code: '42P01' }, 'later', 'other'],
    ['no response', {}, 'lost', 'connection'],
    ['a server that shuts down', { code: '57P01' }, 'lost', 'connection'],
    ['a violated constraint', { code: '23505' }, 'data', 'data'],
    ['a result that is stored already', { code: 'KL005' }, 'data', 'data'],
    ['changed rules', { code: 'KL004' }, 'rules_changed', undefined],
    ['a chain that another writer has extended', { code: 'KL003' }, 'chain_moved', undefined],
    ['a writer that was taken over', { code: 'KL001' }, 'fenced', undefined],
    ['a flush after one that failed', { code: 'KL002' }, 'behind', undefined],
  ];
  for (const [what, fields, kind, cause] of cases) {
    it(`by ${what} are ${kind}, counted as ${cause ?? 'nothing'}`, () => {
      const error = Object.assign(new Error(what), fields);
      expect(flushFailure(error)).to.equal(kind);
      expect(failureCause(flushFailure(error), error)).to.equal(cause);
    });
  }
});
