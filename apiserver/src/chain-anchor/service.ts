// Anchors sealed batches on the chain and watches them until they are proven. AnchorService shows them.
import { AnchorBatch_StatusSchema, AnchorService } from '@kellet/proto/es/kellet/v1/anchor_pb.ts';
import { AnchoringPolicy_ModeSchema } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import type { AnchorMode } from '@kellet/verify';
import type { Platform, ServiceModule } from '../config/module.ts';
import { Loop } from '../platform/background/loop.ts';
import { batchChannel } from '../platform/database/channels.ts';
import { notFound } from '../platform/errors.ts';
import { enumFilter } from '../platform/requests/enums.ts';
import { idField } from '../platform/requests/fields.ts';
import type { Implementation } from '../platform/rpc.ts';
import { type BatchCursor, findBatch, listBatches, toAnchorBatch } from './batches.ts';
import { storedTip } from './headers/header-chain.ts';
import { registerMetrics } from './metrics.ts';
import { assembleParts } from './parts.ts';
import { Confirmations } from './pipeline/confirmations.ts';
import { forgetAll } from './pipeline/forgetting.ts';
import { Turns } from './pipeline/submission-order.ts';
import { type Timing, timingOf } from './pipeline/timing.ts';
import { type BatchStatus, overtakenTransactions, settleDeep } from './transactions/anchor-store.ts';

/** Interval of looking for transactions that are final for long. */
const forgetMilliseconds = 60_000;

/** Number of sealed batches that one process submits concurrently. */
const submitConcurrency = 16;

/** Proofs of blocks that have left the chain, which are withdrawn before the headers are looked at again. */
const overtakenAtOnce = 1000;

/** Number of submissions per round, after which the lanes are read again. */
const turnsOfARound = 256;

/**
 * Creates the service. Without a processor or a wallet key, sealed batches wait; without a header source, mined ones
 * wait for their proof. `timing` overrides the timing for tests.
 */
export function createChainAnchor(platform: Platform, timing: Partial<Timing> = {}): ServiceModule {
  const { config, database, broker, metrics, clock } = platform;
  const logger = platform.logger.child({ service: 'chain-anchor' });
  const pace = { ...timingOf(config.network), ...timing };
  const parts = assembleParts({ config, database, logger, metrics, pace });
  const { headers, tracker, missedBlocks, submitter, wallet, watcher } = parts;
  const confirmations = new Confirmations(database, broker, tracker, clock, logger);
  const isConfigured = submitter !== undefined;
  registerMetrics({ metrics, logger, database }, { wallet, headers }, { isConfigured, lowWater: pace.lowWater });

  let isShort = false;
  const submitAll = async () => {
    const turns = new Turns(await submitter!.lanes(), turnsOfARound);
    const work = async () => {
      for (let lane = turns.take(); lane; lane = turns.take()) {
        const outcome = await submitter!.submitNext(lane);
        if (outcome === 'no_coin' && !isShort) logger.warn('the wallet has no coins left; sealed batches wait');
        if (outcome === 'no_coin') walletLoop?.wake();
        if (outcome === 'none') turns.drop(lane);
        else isShort = outcome === 'no_coin';
        if (outcome === 'no_coin') return;
      }
    };
    const results = await Promise.allSettled(Array.from({ length: submitConcurrency }, work));
    const failed = results.find((result) => result.status === 'rejected');
    if (failed) throw failed.reason;
    return turns.hasLanes && !isShort;
  };
  const followHeaders = async () => {
    await headers!.follow();
    const overtaken = await database.system((tx) => overtakenTransactions(tx, overtakenAtOnce));
    for (const { txid, blockHash } of overtaken) await tracker.blockOvertaken(txid, blockHash);
    await database.system(async (tx) => {
      const tip = await storedTip(tx);
      if (tip !== undefined) await settleDeep(tx, tip, pace.finalDepth);
    });
    return overtaken.length === overtakenAtOnce;
  };

  const submitLoop = submitter && new Loop(logger, 'submit', pace.submitMilliseconds, submitAll);
  const walletLoop =
    wallet &&
    new Loop(logger, 'wallet', pace.walletMilliseconds, async () => {
      await wallet.tend();
      if (isShort) submitLoop?.wake();
    });
  const watchLoop = watcher && new Loop(logger, 'watch', pace.watchMilliseconds, () => watcher.pollDue());
  const headerLoop = headers && new Loop(logger, 'headers', pace.headerMilliseconds, followHeaders);
  const missedLoop =
    missedBlocks && new Loop(logger, 'missed blocks', pace.headerMilliseconds, () => missedBlocks.search());
  const forgetLoop = new Loop(logger, 'forgetting of transactions', forgetMilliseconds, (signal) =>
    forgetAll(database, config.transactionRetentionDays, signal),
  );
  const loops = [forgetLoop, headerLoop, walletLoop, submitLoop, watchLoop, missedLoop].filter(
    (loop) => loop !== undefined,
  );

  const handlers: Implementation<typeof AnchorService> = {
    async listBatches(request, { tenantId }) {
      const status = enumFilter<BatchStatus>('status', AnchorBatch_StatusSchema, request.status);
      const mode = enumFilter<AnchorMode>('anchor_mode', AnchoringPolicy_ModeSchema, request.anchorMode);
      const scope = [tenantId, 'anchors', status, mode];
      const page = platform.paging.open<BatchCursor>(request, scope);
      const filters = { status, mode };
      const [rows, tip] = await database.read(tenantId, (tx) =>
        Promise.all([listBatches(tx, tenantId, filters, page.after, page.size + 1), storedTip(tx)]),
      );
      const cut = platform.paging.close(rows, page, scope, (row): BatchCursor => ({
        createdAt: row.created_text,
        batchId: row.batch_id,
      }));
      return { batches: cut.rows.map((row) => toAnchorBatch(row, tip)), nextPageToken: cut.nextPageToken };
    },
    async getBatch(request, { tenantId }) {
      const batchId = idField('batch_id', request.batchId);
      const [row, tip] = await database.read(tenantId, (tx) =>
        Promise.all([findBatch(tx, tenantId, batchId), storedTip(tx)]),
      );
      if (!row) throw notFound('batch_id');
      return toAnchorBatch(row, tip);
    },
  };

  return {
    register: (registry) => registry.register(AnchorService, handlers),
    start() {
      if (!isConfigured) logger.warn('no processor or no wallet key is configured; sealed batches wait');
      if (!headers) logger.warn('no header source is configured; mined batches wait for their proof');
      database.listen(
        [batchChannel],
        () => submitLoop?.wake(),
        (lost) => lost || submitLoop?.wake(),
      );
      for (const loop of loops) loop.start();
      confirmations.start();
      return Promise.resolve();
    },
    async stop() {
      await Promise.all([confirmations.stop(), ...loops.map((loop) => loop.stop())]);
    },
  };
}
