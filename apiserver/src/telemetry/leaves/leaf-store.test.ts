// Compares the index of leaves in PostgreSQL with a list of all leaves, whatever part of it is packed or merged.
import { createHash } from 'node:crypto';
import { expect } from 'chai';
import fc from 'fast-check';
import type { Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, lockWaitedFor, type TestDatabase } from '../../platform/testing/test-database.ts';
import { bytesOfIds } from './leaf-bytes.ts';
import { storedLeafCount } from './leaf-count.ts';
import { devicesOf, isLeaf, leavesOfDevice, leavesOfHash } from './leaf-store.ts';
import { forgetReplacedRuns, mergeNextRuns, mergeRunsOf, packLeaves, packTenant, unpackNextTable } from './packing.ts';

/** Some hashes share their first four bytes, and are told apart by the leaf vector alone. */
const hashOf = (number: number): Buffer => {
  const hash = createHash('sha256').update(`hash ${number}`).digest();
  if (number % 4 === 0) hash.writeUInt32BE(7);
  return hash;
};

interface GivenLeaf {
  readonly hash: number;
  readonly device: number;
}

interface MadeBatch {
  readonly id: string;
  readonly leaves: readonly GivenLeaf[];
  isConfirmed: boolean;
}

const deviceIds = Array.from({ length: 8 }, () => newId());
let tenants = 0;

describe('the index of leaves', function () {
  this.timeout(300_000);
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  const system = <T>(work: (tx: Transaction) => Promise<T>): Promise<T> => test.database.system(work);
  const newTenant = (): string => `tenant-${(tenants += 1)}`;

  const addBatch = async (
    tenantId: string,
    leaves: readonly GivenLeaf[],
    index: 'unpacked' | 'leaf_index' | bigint = 'unpacked',
  ): Promise<MadeBatch> => {
    const id = newId();
    const devices = leaves.map(({ device }) => deviceIds[device]!);
    await system(async (tx) => {
      await tx.query(
        `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id, count, leaves, sealed_at)
         VALUES ($1, $2, 'merkle', 'sealed', $2, $3, $4, now())`,
        [tenantId, id, leaves.length, Buffer.concat(leaves.map(({ hash }) => hashOf(hash)))],
      );
      if (index === 'unpacked') {
        await tx.query('INSERT INTO unpacked_leaves (tenant_id, batch_id, devices) VALUES ($1, $2, $3)', [
          ...[tenantId, id, bytesOfIds(devices)],
        ]);
        return;
      }
      await tx.query(
        `INSERT INTO ${index === 'leaf_index' ? index : `leaf_index_${index}`} (tenant_id, prefix, batch_id, leaf_index, device_id)
         SELECT $1, prefix, $2, place - 1, device FROM unnest($3::int8[], $4::uuid[]) WITH ORDINALITY AS l (prefix, device, place)`,
        [tenantId, id, leaves.map(({ hash }) => hashOf(hash).readBigInt64BE()), devices],
      );
    });
    return { id, leaves, isConfirmed: false };
  };
  const setConfirmed = async (batch: MadeBatch, isConfirmed: boolean): Promise<void> => {
    await system((tx) =>
      tx.query('UPDATE anchor_batches SET status = $2 WHERE batch_id = $1', [
        batch.id,
        isConfirmed ? 'confirmed' : 'seen',
      ]),
    );
    batch.isConfirmed = isConfirmed;
  };

  /** Compares every answer with what the batches say. */
  const expectAll = async (tenantId: string, batches: readonly MadeBatch[]): Promise<void> => {
    const all = batches.flatMap(({ id: batchId, leaves, isConfirmed }) =>
      leaves.map(({ hash, device }, index) => ({ batchId, index, hash, device, isConfirmed })),
    );
    const names = (list: readonly { batchId: string; index: number }[]) =>
      list.map(({ batchId, index }) => `${batchId}/${index}`);
    for (let number = 0; number < 20; number += 1) {
      const found = await test.database.read(tenantId, (tx) => leavesOfHash(tx, tenantId, hashOf(number)));
      const matching = names(all.filter(({ hash, isConfirmed }) => isConfirmed && hash === number));
      expect(names(found)).to.include.members(matching);
      const prefix = hashOf(number).readUInt32BE();
      const possible = names(all.filter(({ hash }) => hashOf(hash).readUInt32BE() === prefix));
      expect(names(found).filter((name) => !possible.includes(name))).to.deep.equal([]);
      const isThere = all.some(({ hash }) => hash === number);
      expect(await system((tx) => isLeaf(tx, tenantId, hashOf(number)))).to.equal(isThere);
    }
    const devices = await test.database.read(tenantId, (tx) =>
      devicesOf(
        tx,
        tenantId,
        all.map(({ batchId, index, hash }) => ({ batchId, index, hash: hashOf(hash) })),
      ),
    );
    expect(Object.fromEntries(devices)).to.deep.equal(
      Object.fromEntries(all.map(({ batchId, index, device }) => [`${batchId}/${index}`, deviceIds[device]])),
    );
    for (const [device, deviceId] of deviceIds.entries()) {
      const proven = all.filter((leaf) => leaf.isConfirmed && leaf.device === device);
      proven.sort((a, b) => (a.batchId < b.batchId ? 1 : a.batchId > b.batchId ? -1 : b.index - a.index));
      for (const [offset, limit] of [
        [0, 500],
        [2, 3],
        [proven.length - 1, 2],
        [proven.length + 1, 5],
      ] as const) {
        const page = await test.database.tenantSnapshot(tenantId, (tx) =>
          leavesOfDevice(tx, tenantId, deviceId, { offset: Math.max(0, offset), limit }),
        );
        expect(page.total).to.equal(proven.length);
        const from = Math.max(0, offset);
        expect(names(page.leaves)).to.deep.equal(names(proven.slice(from, from + limit)));
      }
    }
  };

  const leaf = fc.record({ hash: fc.nat(19), device: fc.nat(7) });
  const step = fc.oneof(
    {
      weight: 4,
      arbitrary: fc.record({ kind: fc.constant('add'), leaves: fc.array(leaf, { minLength: 1, maxLength: 6 }) }),
    },
    { weight: 3, arbitrary: fc.record({ kind: fc.constant('confirm'), of: fc.nat(30) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant('withdraw'), of: fc.nat(30) }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('pack') }) },
  );

  it('answers as a list of all leaves does, whatever is packed', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 25 }), async (steps) => {
        const tenantId = newTenant();
        const batches: MadeBatch[] = [];
        for (const one of steps) {
          if ('leaves' in one) batches.push(await addBatch(tenantId, one.leaves));
          else if ('of' in one) {
            const batch = batches[one.of % Math.max(1, batches.length)];
            if (batch) await setConfirmed(batch, one.kind === 'confirm');
          } else await packTenant(test.database, tenantId);
        }
        await expectAll(tenantId, batches);
      }),
      { numRuns: Number(process.env['KELLET_TEST_RUNS'] ?? 6) },
    );
  });

  it('answers so when runs are merged, and keeps those for a while that readers may have begun with', async () => {
    const tenantId = newTenant();
    const batches: MadeBatch[] = [];
    for (let run = 0; run < 9; run += 1) {
      for (let batch = 0; batch < 3; batch += 1)
        batches.push(
          await addBatch(
            tenantId,
            Array.from({ length: 5 }, (_, place) => ({ hash: (run * 7 + place) % 20, device: (run + place) % 8 })),
          ),
        );
      // One batch is confirmed later, so that it is in a later run than younger ones.
      for (const batch of batches.slice(0, -1)) if (!batch.isConfirmed) await setConfirmed(batch, true);
      expect(await packTenant(test.database, tenantId)).to.equal(true);
    }
    await setConfirmed(batches.at(-1)!, true);
    expect(await packTenant(test.database, tenantId)).to.equal(true);
    await setConfirmed(batches[4]!, false);
    await expectAll(tenantId, batches);
    expect(await mergeRunsOf(test.database, tenantId)).to.equal(true);
    expect(await mergeRunsOf(test.database, tenantId)).to.equal(false);
    await expectAll(tenantId, batches);
    const counts = async () => {
      const { rows } = await system((tx) =>
        tx.query<{ runs: number; replaced: number }>(
          `SELECT count(*)::int4 AS runs, count(replaced_at)::int4 AS replaced FROM leaf_runs WHERE tenant_id = $1`,
          [tenantId],
        ),
      );
      return rows[0];
    };
    expect(await counts()).to.deep.equal({ runs: 11, replaced: 8 });
    await forgetReplacedRuns(test.database);
    expect(await counts()).to.deep.equal({ runs: 11, replaced: 8 });
    await system((tx) => tx.query(`UPDATE leaf_runs SET replaced_at = replaced_at - interval '2 minutes'`));
    await forgetReplacedRuns(test.database);
    expect(await counts()).to.deep.equal({ runs: 3, replaced: 0 });
    await expectAll(tenantId, batches);
    const { rows } = await system((tx) =>
      tx.query('SELECT FROM leaf_blocks b WHERE NOT EXISTS (SELECT FROM leaf_runs r WHERE r.run_id = b.run_id)'),
    );
    expect(rows).to.deep.equal([]);
  });

  it('answers from the tables of earlier versions, and packs their leaves, while readers hold them', async () => {
    const tenantId = newTenant();
    const { rows } = await system((tx) =>
      tx.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [newId()]),
    );
    const { id } = rows[0]!;
    const batches: MadeBatch[] = [];
    for (const index of ['leaf_index', id] as const)
      for (let batch = 0; batch < 4; batch += 1)
        batches.push(
          await addBatch(
            tenantId,
            Array.from({ length: 6 }, (_, place) => ({ hash: batch * 3 + place, device: (batch + place) % 8 })),
            index,
          ),
        );
    for (const batch of batches.slice(1)) await setConfirmed(batch, true);
    for (const batch of [batches[2]!, batches[5]!]) await setConfirmed(batch, false);
    await expectAll(tenantId, batches);
    await system((tx) =>
      tx.query(`UPDATE telemetry_segments SET state = 'indexed', rows = 24 WHERE segment_id = $1`, [id]),
    );
    let moving: Promise<boolean> | undefined;
    await system(async (tx) => {
      await tx.query('SELECT FROM leaf_index LIMIT 1');
      moving = unpackNextTable(test.database);
      await lockWaitedFor(test.database);
    });
    expect(await moving).to.equal(true);
    await expectAll(tenantId, batches);
    while (await unpackNextTable(test.database));
    await expectAll(tenantId, batches);
    expect(await packTenant(test.database, tenantId)).to.equal(true);
    for (const batch of [batches[0]!, batches[2]!]) await setConfirmed(batch, true);
    await setConfirmed(batches[6]!, false);
    await expectAll(tenantId, batches);
    const left = await system((tx) => tx.query('SELECT FROM leaf_index WHERE tenant_id = $1', [tenantId]));
    expect(left.rows).to.deep.equal([]);
    const facts = await system((tx) =>
      tx.query(
        `SELECT has_leaves, to_regclass('leaf_index_' || segment_id) AS "table" FROM telemetry_segments WHERE segment_id = $1`,
        [id],
      ),
    );
    expect(facts.rows).to.deep.equal([{ has_leaves: false, table: null }]);
  });

  /** Adds a run of some batches. Returns these. */
  const addRun = async (tenantId: string, number: number): Promise<MadeBatch[]> => {
    const batches: MadeBatch[] = [];
    for (let batch = 0; batch < 2; batch += 1)
      batches.push(
        await addBatch(tenantId, [{ hash: number, device: 0 }, ...[1, 2].map((device) => ({ hash: batch, device }))]),
      );
    for (const batch of batches) await setConfirmed(batch, true);
    expect(await packTenant(test.database, tenantId)).to.equal(true);
    return batches;
  };

  it('counts each leaf once while leaves are packed and merged', async () => {
    const tenantId = newTenant();
    for (let run = 0; run < 8; run += 1) await addRun(tenantId, run);
    await setConfirmed(await addBatch(tenantId, [{ hash: 3, device: 0 }]), true);
    const page = { offset: 0, limit: 100 };
    await test.database.tenantSnapshot(tenantId, async (tx) => {
      const before = await leavesOfDevice(tx, tenantId, deviceIds[0]!, page);
      expect(before.total).to.equal(17);
      expect(await packTenant(test.database, tenantId)).to.equal(true);
      expect(await mergeRunsOf(test.database, tenantId)).to.equal(true);
      expect(await leavesOfDevice(tx, tenantId, deviceIds[0]!, page)).to.deep.equal(before);
    });
  });

  it('is merged for other tenants where it is damaged for one', async () => {
    const [damaged, sound] = [newTenant(), newTenant()];
    for (const tenantId of [damaged, sound]) for (let run = 0; run < 8; run += 1) await addRun(tenantId, run);
    await system((tx) => tx.query('DELETE FROM leaf_blocks WHERE tenant_id = $1 AND part = 1', [damaged]));
    const failure = await mergeNextRuns(test.database).catch(String);
    expect(failure).to.be.a('string');
    const { rows } = await system((tx) =>
      tx.query<{ tenant_id: string; runs: number }>(
        `SELECT tenant_id, count(*)::int4 AS runs FROM leaf_runs
         WHERE tenant_id = ANY($1) AND replaced_at IS NULL GROUP BY tenant_id ORDER BY runs`,
        [[damaged, sound]],
      ),
    );
    expect(rows).to.deep.equal([
      { tenant_id: sound, runs: 1 },
      { tenant_id: damaged, runs: 8 },
    ]);
    // The other tests would meet it again.
    await system((tx) => tx.query('DELETE FROM leaf_runs WHERE tenant_id = $1', [damaged]));
  });

  it('packs the leaves of tenants that have many, and leaves alone those of others', async () => {
    const [busy, quiet] = [newTenant(), newTenant()];
    for (const [tenantId, count] of [
      [busy, 64],
      [quiet, 63],
    ] as const)
      for (let batch = 0; batch < count; batch += 1)
        await setConfirmed(await addBatch(tenantId, [{ hash: batch, device: 0 }]), true);
    while (await packLeaves(test.database));
    const { rows } = await system((tx) =>
      tx.query<{ tenant_id: string }>('SELECT tenant_id FROM leaf_runs WHERE tenant_id = ANY($1)', [[busy, quiet]]),
    );
    expect(rows).to.deep.equal([{ tenant_id: busy }]);
    // Nobody who asks has to read its batches.
    expect(await system((tx) => storedLeafCount(tx, busy))).to.equal(64);
    expect(await system((tx) => storedLeafCount(tx, quiet))).to.equal(undefined);
  });

  it('shows a tenant its own leaves alone, also in the proofs that are read by SQL', async () => {
    const [mine, other] = [newTenant(), newTenant()];
    const batches = [
      await addBatch(mine, [
        { hash: 1, device: 1 },
        { hash: 2, device: 2 },
      ]),
      await addBatch(mine, [{ hash: 3, device: 3 }]),
    ];
    for (const batch of batches) await setConfirmed(batch, true);
    const proofs = (tenantId: string) =>
      test.database.tenant(tenantId, async (tx) => {
        const { rows } = await tx.query<{ data_hash: string; device_id: string }>(
          'SELECT data_hash, device_id FROM anchor_proofs ORDER BY batch_id, device_id',
        );
        return rows;
      });
    const expected = [1, 2, 3].map((number) => ({
      data_hash: hashOf(number).toString('hex'),
      device_id: deviceIds[number],
    }));
    const sorted = (list: readonly { data_hash: string }[]) =>
      list.toSorted((a, b) => a.data_hash.localeCompare(b.data_hash));
    expect(sorted(await proofs(mine))).to.deep.equal(sorted(expected));
    expect(await packTenant(test.database, mine)).to.equal(true);
    expect(sorted(await proofs(mine))).to.deep.equal(sorted(expected));
    expect(await proofs(other)).to.deep.equal([]);
    for (const table of ['unpacked_leaves', 'leaf_runs', 'leaf_blocks', 'withdrawn_proofs']) {
      const { rows } = await test.database.tenant(other, (tx) => tx.query(`SELECT FROM ${table}`));
      expect(rows, table).to.deep.equal([]);
    }
    const found = await test.database.tenant(other, (tx) => leavesOfHash(tx, mine, hashOf(1)));
    expect(found).to.deep.equal([]);
  });
});
