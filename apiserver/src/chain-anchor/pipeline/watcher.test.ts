// How often pending transactions are polled; what follows from their status is tested in faults.test.ts.
import { randomBytes } from 'node:crypto';
import { serialiseTransaction, txidOf } from '@kellet/verify';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { fillTenant } from '../../tenant-data/testing/test-rows.ts';
import { floorRate } from '../processor/fees.ts';
import { Processor, ProcessorUnavailable } from '../processor/processor.ts';
import type { StatusReport } from '../processor/processor-status.ts';
import { startTestChain, type TestChain } from '../testing/test-chain.ts';
import { claimDue } from '../transactions/anchor-store.ts';
import { Sender } from '../transactions/sender.ts';
import type { Submitter } from './submitter.ts';
import { timingOf } from './timing.ts';
import { Tracker } from './tracker.ts';
import { Watcher, type WatcherParts } from './watcher.ts';

describe('pending transactions', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let chain: TestChain;
  let watcher: Watcher;
  let another: (other: Partial<WatcherParts>) => Watcher;
  let tracker: Tracker;
  /** Database transactions of the watcher and the tracker. */
  let transactions = 0;
  const pollIntervals = { pollMilliseconds: 30_000, mostPollMilliseconds: 3_600_000 };

  before(async () => {
    test = await createTestDatabase();
    chain = await startTestChain();
    const database = new Proxy(test.database, {
      get: (target, name) => {
        const value = Reflect.get(target, name) as unknown;
        if (typeof value !== 'function') return value;
        return (...values: unknown[]) => {
          transactions += 1;
          return (value as (...values: unknown[]) => unknown).apply(target, values);
        };
      },
    });
    const logger = createLogger('silent');
    const processor = new Processor({
      url: chain.url,
      token: '',
      callbackUrl: '',
      maximumRate: floorRate,
      onHighRate: () => undefined,
    });
    tracker = new Tracker(database, undefined, logger);
    const sender = new Sender(database, processor, tracker, logger, createMetrics());
    const { stuckTimeouts } = timingOf('local');
    another = (other) =>
      new Watcher({
        ...{
          database,
          processor,
          headers: undefined,
          tracker,
          sender,
          submitter: undefined,
          wallet: undefined,
          logger,
        },
        ...{ pollIntervals, stuckTimeouts, ...other },
      });
    watcher = another({});
  });
  afterEach(() => test.database.system((tx) => tx.query('DELETE FROM chain_transactions')));
  after(async () => {
    await chain.stop();
    await test.drop();
  });

  /** Stores transactions that the chain does not know, whose status is the same for so many seconds and which are due. */
  const insert = (count: number, seconds: number) =>
    test.database.system((tx) =>
      tx.query(
        `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt, processor_status, processor_status_since, created_at)
         SELECT txid, 'funding', '', sha256(txid::bytea), 1, 'SEEN_ON_NETWORK', now() - $2 * interval '1 second', now() - interval '1 year'
         FROM unnest($1::text[]) AS txid`,
        [Array.from({ length: count }, () => randomBytes(32).toString('hex')), seconds],
      ),
    );
  /** Returns in how many seconds each is due, the next one first. */
  const waits = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ seconds: number }>(
        'SELECT extract(epoch FROM next_poll_at - now())::float8 AS seconds FROM chain_transactions ORDER BY 1',
      ),
    );
    return rows.map(({ seconds }) => seconds);
  };

  it('are polled again after a tenth of the time since their status changed, within limits', async () => {
    for (const [age, expected] of [
      [10, 30],
      [300, 30],
      [6000, 600],
      [10_000_000, 3600],
    ] as const) {
      await insert(1, age);
      await test.database.system((tx) => claimDue(tx, 16, pollIntervals));
      // Those before are due later, or as soon.
      expect((await waits()).at(-1)).to.be.within(expected - 5, expected + 1);
    }
  });

  it('say what the processor says about them, even with characters that PostgreSQL cannot hold', async () => {
    await fillTenant(test.database, 'acme');
    const txid = randomBytes(32).toString('hex');
    const { rows } = await test.database.system(async (tx) => {
      const updated = await tx.query<{ batch_id: string }>(
        `UPDATE anchor_batches SET status = 'submitted' RETURNING batch_id`,
      );
      await tx.query(
        `INSERT INTO chain_transactions (txid, purpose, batch_id, lease, raw_tx, attempt)
         VALUES ($1, 'anchor', $2, '', '\\x00', 1)`,
        [txid, updated.rows[0]!.batch_id],
      );
      return updated;
    });
    const nothing = { blockHash: '', blockHeight: 0, merklePath: '', competingTxids: [] };
    const report = { txid, status: 'REJECTED', ...nothing, extraInfo: 'no\0 coin \ud83d' } as const;
    expect(await tracker.apply(report, false)).to.equal('noted');
    const batch = await test.database.system((tx) =>
      tx.query('SELECT error FROM anchor_batches WHERE batch_id = $1', [rows[0]!.batch_id]),
    );
    expect(batch.rows).to.deep.equal([{ error: 'the processor rejected the transaction: no coin \ufffd' }]);
  });

  it('cost one database transaction for a poll of up to 16 whose status has not changed', async () => {
    // The chain does not know their coins, so that they remain orphans.
    const orphans = Array.from({ length: 16 }, () => {
      const raw = serialiseTransaction({
        version: 1,
        inputs: [
          {
            previousTxid: randomBytes(32),
            previousOutputIndex: 0,
            unlockingScript: new Uint8Array(),
            sequence: 0xffff_ffff,
          },
        ],
        outputs: [{ satoshis: 0n, lockingScript: new Uint8Array([0, 0x6a]) }],
        lockTime: 0,
      });
      return { txid: txidOf(raw), raw: Buffer.from(raw) };
    });
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt)
         SELECT txid, 'anchor', txid, raw, 1 FROM unnest($1::text[], $2::bytea[]) AS made (txid, raw)`,
        [orphans.map(({ txid }) => txid), orphans.map(({ raw }) => raw)],
      ),
    );
    expect(await watcher.pollDue()).to.equal(16);
    const query = async <Row extends object>(text: string) =>
      (await test.database.system((tx) => tx.query<Row & Record<string, unknown>>(text))).rows;
    expect(
      await query('SELECT processor_status AS status, count(*)::int4 AS count FROM chain_transactions GROUP BY 1'),
    ).to.deep.equal([{ status: 'SEEN_IN_ORPHAN_MEMPOOL', count: 16 }]);
    await query('UPDATE chain_transactions SET next_poll_at = now()');
    transactions = 0;
    expect(await watcher.pollDue()).to.equal(16);
    // One that claims them, and one that finds no others.
    expect(transactions).to.equal(2);
  });

  it('are not polled again and again because two attempts of each are said to compete', async () => {
    const count = 20;
    const pairs = Array.from({ length: count }, () => [
      randomBytes(32).toString('hex'),
      randomBytes(32).toString('hex'),
    ]);
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt)
         SELECT txid, 'anchor', lease, sha256(txid::bytea), attempt
         FROM unnest($1::text[], $2::text[], $3::int4[]) AS made (txid, lease, attempt)`,
        [pairs.flat(), pairs.flatMap(([first]) => [first, first]), pairs.flatMap(() => [1, 2])],
      ),
    );
    let asked = 0;
    const competing = (txid: string) => pairs.find((pair) => pair.includes(txid))!.filter((other) => other !== txid);
    const processor = {
      status: async (txid: string): Promise<StatusReport> => {
        asked += 1;
        if (asked > 10 * count) throw new ProcessorUnavailable('asked too often');
        const nothing = { blockHash: '', blockHeight: 0, merklePath: '', extraInfo: '' };
        return { txid, status: 'DOUBLE_SPEND_ATTEMPTED', ...nothing, competingTxids: competing(txid) };
      },
    } as unknown as Processor;
    await another({ processor, submitter: {} as Submitter }).pollDue();
    // The first attempt once more, because the second says that it competes.
    expect(asked).to.be.within(2 * count, 3 * count);
  });

  it('are not all asked for while the processor is unavailable, and soon when it is back', async () => {
    await insert(40, 10_000_000);
    await chain.control('faults', { unavailable_ms: 600_000 });
    expect(await watcher.pollDue()).to.equal(16);
    const away = await waits();
    expect(away.filter((seconds) => seconds <= 0)).to.have.length(24);
    expect(Math.max(...away)).to.be.within(145, 151);
    await chain.clearFaults();
    expect(await watcher.pollDue()).to.equal(24);
    expect((await waits()).filter((seconds) => seconds > 3000)).to.have.length(24);
  });
});
