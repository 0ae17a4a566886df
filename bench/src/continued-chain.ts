// The chain that a filled installation knows, continued by the local chain: its headers, and a first block with the transactions that
// the installation still waits for.
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PrivateKey } from '@bsv/sdk';
import { toHex, txidOf } from '@kellet/verify';
import pg from 'pg';
import { SUBSIDY } from '../../dev/devchain/block.ts';
import { Chain } from '../../dev/devchain/chain.ts';
import { timestamp } from '../../dev/devchain/clock.ts';
import type { DevchainEvent } from '../../dev/devchain/events.ts';
import { openJournal } from '../../dev/devchain/journal.ts';
import { createMiner } from '../../dev/devchain/miner.ts';

/**
 * Creates the journal of a local chain in a folder, if the installation knows headers. Returns the path of the file with these headers,
 * or undefined if there are none.
 *
 * The coins that the waiting transactions spend are of blocks whose transactions nobody has, so the local chain would never mine them,
 * and they would be asked for again and again.
 */
export async function continueChain(databaseUrl: string, folder: string): Promise<string | undefined> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    const known = await client.query<{ header: Buffer }>('SELECT header FROM block_headers ORDER BY height');
    if (known.rows.length === 0) return undefined;
    const waiting = await client.query<{ raw_tx: Buffer }>(
      `SELECT raw_tx FROM chain_transactions WHERE state = 'pending' ORDER BY created_at, txid`,
    );
    const headers = known.rows.map(({ header }) => header);
    const { journal } = openJournal<DevchainEvent>(folder);
    journal.append(
      firstEvents(
        headers,
        waiting.rows.map(({ raw_tx: raw }) => raw),
      ),
    );
    journal.close();
    const file = join(folder, 'headers');
    await writeFile(file, Buffer.concat(headers));
    return file;
  } finally {
    await client.end();
  }
}

/** Returns the events of a chain after these headers: its creation, and a block with these transactions. */
function firstEvents(headers: readonly Uint8Array[], transactions: readonly Uint8Array[]): DevchainEvent[] {
  const at = timestamp();
  const key = PrivateKey.fromRandom().toHex();
  const { lockingScript } = createMiner(key);
  const txids = transactions.map(txidOf);
  const { header, coinbase } = new Chain(headers).makeBlock(txids, {
    reward: SUBSIDY,
    lockingScript,
    seconds: Math.floor(Date.now() / 1000),
  });
  return [
    { type: 'created', at, miner_key: key },
    ...transactions.map((raw) => {
      const accepted = { status: 'SEEN_ON_NETWORK', pool: 'mempool', extra_info: '', competing: [] } as const;
      return { type: 'submitted' as const, at, raw: toHex(raw), ...accepted };
    }),
    { type: 'connected', at, header: toHex(header), coinbase: toHex(coinbase), txids },
  ];
}
