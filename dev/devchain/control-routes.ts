// Routes with which tests and the local stack control devchain. They work regardless of active faults.
//   POST /dev/mine   {"count"}                          → {"height","block_hash","blocks":[{"height","hash","transactions"}]}
//   POST /dev/reorg  {"depth","double_spends"}          → {"depth","height","block_hash","stale_block_hashes"}
//   POST /dev/fund   {"address","satoshis","outputs"}   → {"txid","raw_tx","bump","block_height","block_hash"}
//   POST /dev/faults, DELETE /dev/faults                → the faults in force
//   GET  /dev/state
// Invalid requests return 400 with {"message"}.
import { toHex } from '@kellet/verify';
import { type Devchain, INITIAL_BLOCKS } from './devchain.ts';
import { parseFaults } from './faults.ts';
import { type HttpRequest, type HttpResponse, parseJson } from './http.ts';
import { addressScript, RefusedError } from './miner.ts';

const MAXIMUM_BLOCKS = 1000;
const MAXIMUM_DEPTH = 100;
const MAXIMUM_OUTPUTS = 10_000;
const MAXIMUM_SATOSHIS = 2_100_000_000_000_000;

const methods: Readonly<Record<string, readonly string[]>> = {
  '/dev/mine': ['POST'],
  '/dev/reorg': ['POST'],
  '/dev/fund': ['POST'],
  '/dev/faults': ['POST', 'DELETE'],
  '/dev/state': ['GET'],
};

/** Handles a request under `/dev`. */
export function handleControl(devchain: Devchain, request: HttpRequest): HttpResponse {
  const allowed = methods[request.path];
  if (allowed === undefined) return { status: 404, body: { message: 'no such control route' } };
  if (!allowed.includes(request.method)) {
    return { status: 405, body: { message: 'method not allowed' }, headers: { allow: allowed.join(', ') } };
  }
  try {
    return { status: 200, body: perform(devchain, `${request.method} ${request.path}`, request) };
  } catch (error) {
    if (!(error instanceof RefusedError)) throw error;
    return { status: 400, body: { message: error.message } };
  }
}

function perform(devchain: Devchain, operation: string, request: HttpRequest): unknown {
  switch (operation) {
    case 'POST /dev/mine':
      return mine(devchain, fields(request, ['count']));
    case 'POST /dev/reorg':
      return reorganise(devchain, fields(request, ['depth', 'double_spends']));
    case 'POST /dev/fund':
      return fund(devchain, fields(request, ['address', 'satoshis', 'outputs']));
    case 'POST /dev/faults':
      return changeFaults(devchain, json(request));
    case 'DELETE /dev/faults':
      devchain.clearFaults();
      return devchain.faults.current;
    default:
      return state(devchain);
  }
}

function mine(devchain: Devchain, body: Fields) {
  const count = wholeNumber(body, 'count', 1, MAXIMUM_BLOCKS, 1);
  const blocks = Array.from({ length: count }, () => devchain.mine()).map((block) => ({
    height: block.height,
    hash: block.hash,
    transactions: block.txids.length,
  }));
  const tip = devchain.ledger.chain.tip;
  return { height: tip.height, block_hash: tip.hash, blocks };
}

function reorganise(devchain: Devchain, body: Fields) {
  // The first coins stay: reorganisations never reach below a coinbase's maturity.
  const { baseHeight, tip } = devchain.ledger.chain;
  const maxDepth = Math.min(MAXIMUM_DEPTH, tip.height - baseHeight - INITIAL_BLOCKS + 1);
  const depth = wholeNumber(body, 'depth', 1, maxDepth, 1);
  const doubleSpends = wholeNumber(body, 'double_spends', 0, 1_000_000, 0);
  const { newTip, stale } = devchain.reorganise(depth, doubleSpends);
  return {
    depth,
    height: newTip.height,
    block_hash: newTip.hash,
    stale_block_hashes: stale.map((block) => block.hash),
  };
}

function fund(devchain: Devchain, body: Fields) {
  if (typeof body.address !== 'string') throw new RefusedError('address must be a string');
  const lockingScript = addressScript(body.address);
  const satoshis = BigInt(wholeNumber(body, 'satoshis', 1, MAXIMUM_SATOSHIS));
  const outputs = wholeNumber(body, 'outputs', 1, MAXIMUM_OUTPUTS, 1);
  const { record, block } = devchain.fund(Array.from({ length: outputs }, () => ({ satoshis, lockingScript })));
  return {
    txid: record.txid,
    raw_tx: toHex(record.raw),
    bump: devchain.ledger.chain.bump(block, record.txid),
    block_height: block.height,
    block_hash: block.hash,
  };
}

function changeFaults(devchain: Devchain, body: unknown) {
  const change = parseFaults(body);
  if (typeof change === 'string') throw new RefusedError(change);
  devchain.faults.merge(change);
  return devchain.faults.current;
}

function state(devchain: Devchain) {
  const { chain, mempool, orphans, transactionCount } = devchain.ledger;
  return {
    network: 'regtest',
    height: chain.tip.height,
    block_hash: chain.tip.hash,
    genesis_hash: chain.at(0)!.hash,
    blocks: chain.blockCount,
    mempool: mempool.size,
    orphans: orphans.length,
    utxos: chain.coinCount,
    transactions: transactionCount,
    pending_callbacks: devchain.callbacks.pending.length,
    faults: devchain.faults.current,
  };
}

type Fields = Readonly<Record<string, unknown>>;

function json(request: HttpRequest): unknown {
  const parsed = parseJson(request.body);
  if ('error' in parsed) throw new RefusedError(parsed.error);
  return parsed.value;
}

function fields(request: HttpRequest, names: readonly string[]): Fields {
  const body = json(request);
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw new RefusedError('the body must be a JSON object');
  }
  const unknown = Object.keys(body).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new RefusedError(`unknown field: ${unknown}`);
  return body as Fields;
}

function wholeNumber(body: Fields, name: string, min: number, max: number, fallback?: number): number {
  const value = body[name] ?? fallback;
  if (!Number.isSafeInteger(value) || (value as number) < min || (value as number) > max) {
    throw new RefusedError(`${name} must be a whole number from ${min} to ${max}`);
  }
  return value as number;
}
