// The processor's routes, as ARC v1.5 serves them: POST /v1/tx and /v1/txs, GET /v1/tx/{txid}, /v1/policy, /v1/health.
// Status codes, bodies, field order and header behaviour follow it; two things differ. The X-Skip… and
// X-ForceValidation headers change nothing: everything is always validated. And there is no network to cross, so a
// transaction is SEEN_ON_NETWORK at once, and GET never lags behind POST.
import { createHash, timingSafeEqual } from 'node:crypto';
import { ArcProblem } from './arc-problem.ts';
import { type ArcHeaders, parseArcBody, parseArcHeaders, RequestError } from './arc-request.ts';
import { timestamp } from './clock.ts';
import type { Devchain } from './devchain.ts';
import type { HttpRequest, HttpResponse } from './http.ts';
import { policy } from './spend-check.ts';
import { statusRank, type TransactionRecord } from './status.ts';
import { type ClaimedRoot, readSubmissions, type Submission } from './submission.ts';

/** Handles a request under `/v1`. */
export type ArcRoutes = (request: HttpRequest) => Promise<HttpResponse>;

/** Creates the routes of the processor. `token` is the required bearer token; undefined leaves them open. */
export function createArcRoutes(devchain: Devchain, token: string | undefined): ArcRoutes {
  return async (request) => {
    if (token !== undefined && !isAuthorised(request.header('authorization'), token)) {
      return { status: 401, body: { message: 'Unauthorized' } };
    }
    try {
      return await route(devchain, request);
    } catch (error) {
      if (error instanceof ArcProblem) return { status: error.body.status, body: error.body };
      if (error instanceof RequestError) return { status: 400, body: { message: error.message } };
      throw error;
    }
  };
}

function isAuthorised(header: string | undefined, token: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(header ?? ''), digest(`Bearer ${token}`));
}

async function route(devchain: Devchain, request: HttpRequest): Promise<HttpResponse> {
  const { method, path } = request;
  const [, txid] = /^\/v1\/tx\/([^/]+)$/.exec(path) ?? [];
  if (txid !== undefined && method === 'GET') return { status: 200, body: getTransaction(devchain, txid) };
  switch (`${method} ${path}`) {
    case 'POST /v1/tx':
      return postTransaction(devchain, request);
    case 'POST /v1/txs':
      return { status: 200, body: await postTransactions(devchain, request, true) };
    case 'GET /v1/policy':
      return { status: 200, body: { policy, timestamp: timestamp(9) } };
    case 'GET /v1/health':
      return { status: 200, body: { healthy: true, reason: null, version: '' } };
    default: {
      const isKnown = txid !== undefined || /^\/v1\/(txs?|policy|health)$/.test(path);
      return { status: 404, body: { message: isKnown ? 'method not allowed' : 'no matching operation was found' } };
    }
  }
}

/** Response to a single transaction, with its own status code. */
async function postTransaction(devchain: Devchain, request: HttpRequest): Promise<HttpResponse> {
  const [first] = await postTransactions(devchain, request, false);
  return { status: first!.status, body: first };
}

type PostResult = ArcProblem['body'] | ReturnType<typeof postResponse>;

/** Responses to all transactions of a body: accepted ones first, then rejected ones. */
async function postTransactions(devchain: Devchain, request: HttpRequest, many: boolean): Promise<PostResult[]> {
  const headers = parseArcHeaders(request.header);
  const bodies = parseArcBody(request, many).map((bytes) => readSubmissions(bytes));
  const accepted: Readonly<TransactionRecord>[] = [];
  const refused: ArcProblem[] = [];
  for (const { transactions, roots } of bodies) {
    for (const submission of transactions) {
      try {
        checkRoots(devchain, submission, roots);
        accepted.push(devchain.submit(submission, headers.callback));
      } catch (error) {
        if (!(error instanceof ArcProblem)) throw error;
        refused.push(error);
      }
    }
  }
  await waitForAll(devchain, accepted, headers, request.signal);
  return [...accepted.map((record) => postResponse(devchain, record)), ...refused.map((problem) => problem.body)];
}

function checkRoots(devchain: Devchain, { txid }: Submission, roots: readonly ClaimedRoot[]): void {
  const wrong = roots.find(({ height, root }) => devchain.ledger.chain.merkleRootAt(height) !== root);
  if (wrong !== undefined) throw new ArcProblem(469, `no block at height ${wrong.height} has root ${wrong.root}`, txid);
}

/** Waits until each transaction has the requested or a final status, up to the client's timeout. */
async function waitForAll(
  devchain: Devchain,
  records: readonly Readonly<TransactionRecord>[],
  { waitFor, maximumSeconds }: ArcHeaders,
  signal: AbortSignal,
): Promise<void> {
  const arrived = ({ status }: Readonly<TransactionRecord>) =>
    statusRank[status] >= statusRank[waitFor] || status === 'REJECTED';
  if (records.every(arrived)) return;
  const limit = AbortSignal.any([signal, AbortSignal.timeout(maximumSeconds * 1000)]);
  await Promise.all(records.map(({ txid }) => devchain.waitFor(txid, arrived, limit)));
}

function getTransaction(devchain: Devchain, txid: string): ReturnType<typeof transactionFields> {
  const record = devchain.ledger.transaction(txid);
  if (record === undefined) throw new ArcProblem(404, 'transaction not found');
  return transactionFields(devchain, record);
}

/** Response to a submission. */
function postResponse(devchain: Devchain, record: Readonly<TransactionRecord>) {
  return { status: 200 as const, title: 'OK', ...transactionFields(devchain, record) };
}

/** Response of GET; `timestamp` is the time of the response. */
function transactionFields({ ledger: { chain } }: Devchain, record: Readonly<TransactionRecord>) {
  const isMined = record.status === 'MINED' || record.status === 'MINED_IN_STALE_BLOCK';
  const block = isMined ? chain.block(record.blockHash) : undefined;
  return {
    blockHash: block?.hash ?? '',
    blockHeight: block?.height ?? 0,
    competingTxs: record.status !== 'MINED' && record.competing.length > 0 ? record.competing : null,
    extraInfo: record.extraInfo,
    merklePath: block === undefined ? '' : chain.bump(block, record.txid),
    timestamp: timestamp(9),
    txStatus: record.status,
    txid: record.txid,
  };
}
