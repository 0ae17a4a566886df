// Checks the transactions of anchors and of the wallet: ids, what they carry, and the proofs of those that are mined.
import { txidOf } from '@kellet/verify';
import { pagesOf } from '../platform/pages-of.ts';
import { type Check, type CheckParts, Findings, type Outcome, snapshot } from './check.ts';
import { commitmentProblem, pagesOfBatches, proofProblem } from './check-batches.ts';

const transactionsAtOnce = 200;

interface TransactionRow {
  txid: string;
  purpose: string;
  state: string;
  raw_tx: Buffer;
  bump: Buffer | null;
  block_hash: string | null;
  header_hash: string | null;
  header: Buffer | null;
  batch_id: string | null;
  /** The transaction of the batch, which is checked with it. */
  batch_txid: string | null;
  tenant_id: string | null;
  count: number;
  merkle_root: Buffer | null;
}

/** Yields a check for each page of transactions; those of the wallet belong to no tenant. */
export async function* transactionChecks(parts: CheckParts): AsyncGenerator<Check> {
  for await (const txids of parts.tenantId === undefined ? pagesOfAll(parts) : pagesOfTenant(parts))
    yield () => checkTransactions(parts, txids);
}

async function* pagesOfAll({ database }: CheckParts): AsyncGenerator<string[]> {
  for (let after = ''; ;) {
    const { rows } = await database.systemRead((tx) =>
      tx.query<{ txid: string }>(
        `SELECT txid FROM chain_transactions WHERE txid > $1 ORDER BY txid LIMIT ${transactionsAtOnce}`,
        [after],
      ),
    );
    if (rows.length > 0) yield rows.map((row) => row.txid);
    if (rows.length < transactionsAtOnce) return;
    after = rows.at(-1)!.txid;
  }
}

/** Yields the transactions of each page of the tenant's batches. */
async function* pagesOfTenant(parts: CheckParts): AsyncGenerator<string[]> {
  for await (const ids of pagesOfBatches(parts)) {
    const { rows } = await parts.database.systemRead((tx) =>
      tx.query<{ txid: string }>('SELECT txid FROM chain_transactions WHERE batch_id = ANY($1)', [ids]),
    );
    for (const page of pagesOf(rows, transactionsAtOnce)) yield page.map((row) => row.txid);
  }
}

function checkTransactions({ database }: CheckParts, txids: readonly string[]): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows } = await tx.query<TransactionRow>(
      `SELECT t.txid, t.purpose, t.state, t.raw_tx, t.bump, t.block_hash, h.block_hash AS header_hash, h.header,
         t.batch_id, b.txid AS batch_txid, b.tenant_id, b.count, b.merkle_root
       FROM chain_transactions t LEFT JOIN anchor_batches b USING (batch_id)
       LEFT JOIN block_headers h ON h.height = t.block_height WHERE t.txid = ANY($1) ORDER BY t.txid`,
      [txids],
    );
    const findings = new Findings();
    for (const row of rows) {
      const problem = problemOf(row);
      if (problem !== undefined) findings.add('transaction', row.txid, row.tenant_id ?? '', problem);
    }
    return { checked: { transactions: rows.length }, findings: findings.all };
  });
}

function problemOf(row: TransactionRow): string | undefined {
  if (txidOf(row.raw_tx) !== row.txid) return 'its bytes have another txid';
  if (row.batch_id !== null && row.batch_txid !== row.txid) {
    const problem = commitmentProblem(row.raw_tx, { ...row, batch_id: row.batch_id });
    if (problem !== undefined) return problem;
  } else if (row.batch_id === null && row.purpose === 'anchor') return 'it belongs to no batch';
  return row.state === 'mined' || row.state === 'final' ? proofProblem(row) : undefined;
}
