// Assembles chain-anchor from the parts that the configuration allows.
import type { Config } from '../config/config.ts';
import type { Database } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { Registry } from '../platform/observability/metrics.ts';
import { HeaderChain } from './headers/header-chain.ts';
import { ChainTracks, type HeaderSource, HeadersWithFallback } from './headers/header-source.ts';
import { NodeRpc } from './headers/node-rpc.ts';
import { rulesOf } from './headers/reorganisation.ts';
import { MissedBlocks } from './pipeline/missed-blocks.ts';
import { Submitter } from './pipeline/submitter.ts';
import type { Timing } from './pipeline/timing.ts';
import { Tracker } from './pipeline/tracker.ts';
import { Watcher } from './pipeline/watcher.ts';
import { Processor } from './processor/processor.ts';
import { unsettle } from './transactions/anchor-store.ts';
import { Sender } from './transactions/sender.ts';
import { createWalletKey, type WalletKey } from './wallet/wallet-key.ts';
import { Wallet } from './wallet/wallet-refill.ts';

/** The parts; one is undefined if its setting is missing. */
export interface Parts {
  readonly headers: HeaderChain | undefined;
  readonly tracker: Tracker;
  readonly missedBlocks: MissedBlocks | undefined;
  readonly key: WalletKey | undefined;
  readonly submitter: Submitter | undefined;
  readonly wallet: Wallet | undefined;
  readonly watcher: Watcher | undefined;
}

export function assembleParts(platform: {
  config: Config;
  database: Database;
  logger: Logger;
  metrics: Registry;
  pace: Timing;
}): Parts {
  const { config, database, logger, metrics, pace } = platform;
  const rules = rulesOf(config.network, config.deepestReorganisation);
  const node = config.nodeRpcUrl === '' ? undefined : new NodeRpc(config.nodeRpcUrl);
  const source = headerSource(config.headersUrl, node, logger);
  const headers = source && new HeaderChain(database, source, rules, logger, unsettle);
  const tracker = new Tracker(database, headers, logger);
  const afterMilliseconds = pace.missedMilliseconds;
  const missedBlocks = node && new MissedBlocks({ database, node, tracker, logger, afterMilliseconds });
  const key = config.walletKey === '' ? undefined : createWalletKey(config.walletKey, config.network);
  if (config.arcUrl === '') {
    return { headers, tracker, missedBlocks, key, submitter: undefined, wallet: undefined, watcher: undefined };
  }
  const maximumRate = { satoshis: config.maximumFeeRate, bytes: 1000 };
  const processor = new Processor({
    ...{ url: config.arcUrl, token: config.arcToken, callbackUrl: config.callbackUrl, maximumRate },
    onHighRate: (asked) =>
      logger.error({ asked, paid: maximumRate }, 'the processor asks for more than KELLET_MAXIMUM_FEE_RATE'),
  });
  const sender = new Sender(database, processor, tracker, logger, metrics);
  const firstPollMilliseconds = pace.pollMilliseconds;
  const common = { database, processor, headers, tracker, sender, logger, firstPollMilliseconds };
  const submitter = key && new Submitter({ ...common, key });
  const { fundingUrl } = config;
  const wallet = key && new Wallet({ ...common, key, fundingUrl, lowWater: pace.lowWater, refill: pace.refill });
  const watcher = new Watcher({
    ...common,
    submitter,
    wallet,
    pollIntervals: pace,
    stuckTimeouts: pace.stuckTimeouts,
  });
  return { headers, tracker, missedBlocks, key, submitter, wallet, watcher };
}

/** Returns where headers come from: ChainTracks, and the node if there is none or while it fails. */
function headerSource(headersUrl: string, node: NodeRpc | undefined, logger: Logger): HeaderSource | undefined {
  if (headersUrl === '') return node;
  const tracks = new ChainTracks(headersUrl);
  return node ? new HeadersWithFallback(tracks, node, logger) : tracks;
}
