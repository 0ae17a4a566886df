import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../../../../platform/testing/test-database.ts';
import { matchesPattern } from '../../../provisioning/hardware-id-pattern.ts';
import { toLike } from './fleet-summary.ts';

describe('a pattern of hardware ids in SQL', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  const patterns = [
    'hw-*',
    '*',
    '?',
    'a?c',
    '*-1',
    'a*b*c',
    '50%',
    '*_*',
    '\\*',
    'a\\?',
    '%',
    '_',
    'ü?',
    '',
    'a**',
    '*?*',
  ];
  const ids = [
    'hw-1',
    'hw-',
    'HW-1',
    'a',
    'abc',
    'axbxc',
    '50%',
    '500',
    'a_b',
    '\\x',
    'a\\b',
    '%',
    '_',
    'üß',
    '😀',
    'a\nb',
    '',
  ];
  for (const pattern of patterns) {
    it(`matches the same as elsewhere: ${JSON.stringify(pattern)}`, async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ id: string }>('SELECT id FROM unnest($1::text[]) AS i (id) WHERE id LIKE $2', [
          ids,
          toLike(pattern),
        ]),
      );
      const expected = ids.filter((id) => pattern === '' || matchesPattern(pattern, id));
      expect(rows.map(({ id }) => id)).to.deep.equal(expected);
    });
  }
});
