// Checks the coins of the wallet: each is an output of its transaction, and its state is that of the transactions that make and
// spend it.
import { parseTransaction, toDisplayHex, txidOf } from '@kellet/verify';
import type { Transaction } from '../platform/database/database.ts';
import { type Check, type CheckParts, Findings, type Outcome, snapshot } from './check.ts';

const coinsAtOnce = 500;

interface CoinRow {
  txid: string;
  output_index: number;
  satoshis: bigint;
  state: 'unmined' | 'free' | 'leased' | 'spent' | 'lost';
  leased_by: string | null;
}

interface MadeRow {
  txid: string;
  lease: string;
  state: 'pending' | 'mined' | 'final' | 'dead';
  raw_tx: Buffer;
}

/** A transaction that is stored. */
interface Made {
  readonly txid: string;
  readonly state: MadeRow['state'];
  /** Its bytes are damaged, which the check of transactions reports. */
  readonly isDamaged: boolean;
  readonly amounts: readonly bigint[];
  /** The coins that it spends, as `txid:index`. */
  readonly spends: ReadonlySet<string>;
}

/** Yields a check for each page of coins, which belong to no tenant. */
export async function* coinChecks(parts: CheckParts): AsyncGenerator<Check> {
  if (parts.tenantId !== undefined) return;
  for (let [txid, index] = ['', -1]; ;) {
    const after = [txid, index] as const;
    const { rows } = await parts.database.systemRead((tx) =>
      tx.query<{ txid: string; output_index: number }>(
        `SELECT txid, output_index FROM wallet_outputs WHERE (txid, output_index) > ($1, $2)
         ORDER BY txid, output_index LIMIT ${coinsAtOnce}`,
        [...after],
      ),
    );
    const last = rows.at(-1);
    if (!last) return;
    yield () => checkCoins(parts, after, [last.txid, last.output_index]);
    [txid, index] = [last.txid, last.output_index];
  }
}

type Position = readonly [txid: string, index: number];

function checkCoins({ database }: CheckParts, after: Position, last: Position): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows } = await tx.query<CoinRow & Record<string, unknown>>(
      `SELECT txid, output_index, satoshis, state, leased_by FROM wallet_outputs
       WHERE (txid, output_index) > ($1, $2) AND (txid, output_index) <= ($3, $4)`,
      [...after, ...last],
    );
    const makers = new Map(
      (
        await readMade(
          tx,
          'txid',
          rows.map(({ txid }) => txid),
        )
      ).map(([, made]) => [made.txid, made]),
    );
    const spenders = Map.groupBy(
      await readMade(
        tx,
        'lease',
        rows.flatMap(({ leased_by: lease }) => lease ?? []),
      ),
      ([lease]) => lease,
    );
    const findings = new Findings();
    for (const coin of rows) {
      const ofLease = (spenders.get(coin.leased_by ?? '') ?? []).map(([, made]) => made);
      const problem = coinProblem(coin, makers.get(coin.txid), ofLease);
      if (problem !== undefined) findings.add('coin', nameOf(coin), '', problem);
    }
    return { checked: { coins: rows.length }, findings: findings.all };
  });
}

/** Returns stored transactions by txid or lease, each with its lease. */
async function readMade(tx: Transaction, by: 'txid' | 'lease', values: readonly string[]): Promise<[string, Made][]> {
  const { rows } = await tx.query<MadeRow & Record<string, unknown>>(
    `SELECT txid, lease, state, raw_tx FROM chain_transactions WHERE ${by} = ANY($1)`,
    [[...new Set(values)]],
  );
  return rows.map(({ txid, lease, state, raw_tx: raw }) => {
    if (txidOf(raw) !== txid) return [lease, { txid, state, isDamaged: true, amounts: [], spends: new Set() }];
    const { inputs, outputs } = parseTransaction(raw);
    const spends = inputs.map((input) => `${toDisplayHex(input.previousTxid)}:${input.previousOutputIndex}`);
    return [
      lease,
      { txid, state, isDamaged: false, amounts: outputs.map(({ satoshis }) => satoshis), spends: new Set(spends) },
    ];
  });
}

const nameOf = ({ txid, output_index: index }: CoinRow): string => `${txid}:${index}`;
const isMined = ({ state }: Made): boolean => state === 'mined' || state === 'final';

/** Returns what is wrong with a coin that a transaction has made and that those of its lease may spend. */
function coinProblem(coin: CoinRow, maker: Made | undefined, ofLease: readonly Made[]): string | undefined {
  if (!maker) return 'the transaction that it came from is not stored';
  if (maker.isDamaged || ofLease.some(({ isDamaged }) => isDamaged)) return undefined;
  if (maker.amounts[coin.output_index] !== coin.satoshis) return 'the output of its transaction has another amount';
  const spending = ofLease.filter(({ spends }) => spends.has(nameOf(coin)));
  const spender = spending.find(isMined);
  switch (coin.state) {
    case 'unmined':
      return isMined(maker) ? 'its transaction is mined, but it cannot be spent' : undefined;
    case 'free':
      return isMined(maker) ? undefined : 'it can be spent, but its transaction is not mined';
    case 'leased':
      if (spender) return `it is leased, but ${spender.txid} has spent it`;
      return spending.length === 0 ? 'it is leased, but no transaction spends it' : undefined;
    case 'spent':
      // Its transaction may be deleted with the tenant whose batch it anchored.
      return spender || ofLease.length === 0 ? undefined : 'it is spent by no mined transaction';
    case 'lost':
      return undefined;
  }
}
