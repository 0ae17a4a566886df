import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, lockWaitedFor, type TestDatabase } from '../../platform/testing/test-database.ts';
import { chooseMerge, mergeLeafTables } from './leaf-tables.ts';

const million = 1_000_000;

describe('the tables of leaves to merge', () => {
  const tables = (...sizes: number[]) => sizes.map((leaves, index) => ({ segmentId: BigInt(index + 1), leaves }));
  const chosen = (...sizes: number[]) => chooseMerge(tables(...sizes))?.map(({ segmentId }) => Number(segmentId));
  const eight = (size: number): number[] => Array.from({ length: 8 }, () => size);

  it('are the first eight of about the same size', () => {
    expect(chosen(...eight(million).slice(1))).to.equal(undefined);
    expect(chosen(...eight(million), million)).to.deep.equal([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(chosen(8 * million, ...eight(million))).to.deep.equal([2, 3, 4, 5, 6, 7, 8, 9]);
    expect(chosen(...eight(8 * million))).to.deep.equal([1, 2, 3, 4, 5, 6, 7, 8]);
  });

  it('are small ones before large ones, however small they are', () => {
    expect(chosen(...eight(8 * million), ...eight(0))).to.deep.equal([9, 10, 11, 12, 13, 14, 15, 16]);
    expect(chosen(0, 1, 10, 1000, 100_000, 500_000, 900_000, million)).to.deep.equal([1, 2, 3, 4, 5, 6, 7, 8]);
  });

  it('are none that would make too large a table', () => {
    expect(chosen(...eight(64 * million))).to.equal(undefined);
    expect(chosen(...eight(9 * million))).to.equal(undefined);
  });

  it('leave a number of tables that grows with the logarithm of the leaves', () => {
    const left: { segmentId: bigint; leaves: number }[] = [];
    let most = 0;
    for (let segment = 1n; segment <= 640n; segment += 1n) {
      left.push({ segmentId: segment, leaves: million });
      for (let merge = chooseMerge(left); merge; merge = chooseMerge(left)) {
        const ids = new Set(merge.map(({ segmentId }) => segmentId));
        const rest = left.filter(({ segmentId }) => !ids.has(segmentId));
        left.splice(0, left.length, ...rest, {
          segmentId: merge.at(-1)!.segmentId,
          leaves: merge.reduce((sum, { leaves }) => sum + leaves, 0),
        });
        left.sort((a, b) => Number(a.segmentId - b.segmentId));
      }
      most = Math.max(most, left.length);
    }
    // Ten full ones, and at most seven of each of two smaller sizes.
    expect(most).to.be.at.most(24);
  });
});

describe('merging tables of leaves', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  const addColdSegment = (): Promise<bigint> =>
    test.database.system(async (tx) => {
      const { rows } = await tx.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [newId()]);
      const { id } = rows[0]!;
      await tx.query(
        `INSERT INTO leaf_index_${id} (tenant_id, prefix, batch_id, leaf_index, device_id)
         SELECT 'acme', $1::int8 * 100 + n, gen_random_uuid(), n, gen_random_uuid() FROM generate_series(1, 10) AS n`,
        [id],
      );
      await tx.query(`UPDATE telemetry_segments SET state = 'cold', rows = 10 WHERE segment_id = $1`, [id]);
      await tx.query(`DROP TABLE telemetry_segment_${id}`);
      return id;
    });
  const leafTables = async (): Promise<string[]> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ name: string }>(
        `SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'leaf_index'::regclass ORDER BY inhrelid`,
      ),
    );
    return rows.map(({ name }) => name);
  };

  it('keeps every leaf, and waits for readers of the old tables', async () => {
    const ids: bigint[] = [];
    for (let count = 0; count < 9; count += 1) ids.push(await addColdSegment());
    const leaves = () =>
      test.database.tenant('acme', async (tx) => {
        const { rows } = await tx.query<{ prefix: bigint }>(
          `SELECT prefix FROM leaf_index WHERE tenant_id = 'acme' ORDER BY prefix`,
        );
        return rows.map(({ prefix }) => prefix);
      });
    const before = await leaves();
    expect(before).to.have.length(90);
    let merging: Promise<boolean> | undefined;
    await test.database.system(async (tx) => {
      await tx.query('SELECT FROM leaf_index LIMIT 1');
      merging = mergeLeafTables(test.database);
      await lockWaitedFor(test.database);
    });
    expect(await merging).to.equal(true);
    expect(await leaves()).to.deep.equal(before);
    expect(await leafTables()).to.have.members([`leaf_index_${ids[7]}`, `leaf_index_${ids[8]}`]);
    expect(await mergeLeafTables(test.database)).to.equal(false);
    const { rows } = await test.database.system((tx) =>
      tx.query<{ id: bigint; leaves: bigint | null }>(
        'SELECT segment_id AS id, leaves FROM telemetry_segments WHERE has_leaves ORDER BY segment_id',
      ),
    );
    expect(rows).to.deep.equal([
      { id: ids[7], leaves: 80n },
      { id: ids[8], leaves: null },
    ]);
  });
});
