import { expect } from 'chai';
import type { Transaction } from '../../../../platform/database/database.ts';
import { createTestDatabase, type TestDatabase } from '../../../../platform/testing/test-database.ts';
import { matchesPattern } from '../../../provisioning/hardware-id-pattern.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import { summarizeFleet, toLike } from './fleet-summary.ts';

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

describe('the summary of a fleet', () => {
  it('reads few versions at a time, keeps none, and serves others while it judges very many', async () => {
    let left = 100_000;
    let most = 0;
    const query = async (text: string) => {
      const wanted = Number(/^FETCH (\d+)/.exec(text)?.[1] ?? 0);
      most = Math.max(most, wanted);
      const rows = Array.from({ length: Math.min(wanted, left) }, (_, n) => {
        const version = `1.${left - n - 1}.0`;
        return { version, hash: BigInt(left - n - 1), matches: true, devices: 1 };
      });
      left -= rows.length;
      return { rows };
    };
    const package_ = {
      ...{ package_id: '0197a000-0000-7000-8000-000000000001', type: 'fw', version: '2.0.0' },
      compatibility: { device_type: 'sensor', min_version: '1.500.0' },
    };
    let others = 0;
    const other = setInterval(() => (others += 1), 0);
    try {
      const summary = await summarizeFleet(
        { query } as unknown as Transaction,
        'acme',
        { profileId: 'p', type: 'sensor' },
        package_ as unknown as PackageRow,
      );
      expect({ devices: summary.devices, eligible: summary.eligible }).to.deep.equal({
        devices: 100_000,
        eligible: 99_500,
      });
      expect(summary.excludedVersions).to.have.length(500).and.to.include(499n);
      expect(most).to.be.within(1, 2000);
      expect(others).to.be.above(3);
    } finally {
      clearInterval(other);
    }
  });
});
