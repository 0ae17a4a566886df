// The table of retention periods names the index by which each sweep finds what is due. That statements use one is checked by the
// plans of the gate (bench/src/year/plans.ts).
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import { createTestDatabase } from '../testing/test-database.ts';

const operations = path.join(import.meta.dirname, '../../../../docs/operations.md');

describe('the indexes of retention', () => {
  it('exist under the names that the documentation gives them', async () => {
    const [, section] = readFileSync(operations, 'utf8').split('## How long things are kept');
    const rows = section!
      .split(/\n##+ /)[0]!
      .split('\n')
      .filter((line) => line.startsWith('| '));
    const named = rows.flatMap((row) =>
      [
        ...row
          .split('|')
          .at(-2)!
          .matchAll(/`(\w+)`/g),
      ].map(([, name]) => name!),
    );
    expect(named).to.have.length.above(10);
    const test = await createTestDatabase();
    try {
      const { rows: found } = await test.database.system((tx) =>
        tx.query<{ name: string }>(
          `SELECT indexname AS name FROM pg_indexes WHERE schemaname = 'public' AND indexname = ANY($1)`,
          [named],
        ),
      );
      expect(found.map(({ name }) => name)).to.have.members(named);
    } finally {
      await test.drop();
    }
  });
});
