// Failed sign-ins, counted in the database so that replicas share the counts and restarts keep them.
import { createHash } from 'node:crypto';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import type { Clock } from '../../platform/clock.ts';
import { KeyedMutex } from '../../platform/concurrency/keyed-mutex.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { resourceExhausted } from '../../platform/errors.ts';
import { deleteBefore } from '../../platform/statements/delete-before.ts';
import { addressRule, delayAfter, type DelayRule, pairRule } from './login-delay.ts';

/** Delays sign-ins after failures: per pair of account and address, and per address (IPv6: /64). */
export class LoginThrottle {
  private readonly database: Database;
  private readonly clock: Clock;
  private readonly turns = new KeyedMutex(100);

  constructor(database: Database, clock: Clock) {
    this.database = database;
    this.clock = clock;
  }

  /**
   * Runs one attempt: `read` finds the accounts that it tries, and `work` returns the one that it fits, or undefined when the
   * sign-in failed, which is counted. Throws RESOURCE_EXHAUSTED with the time to wait, without running the work, while earlier
   * failures of the pair or the address block it. Attempts of the same pair run one after
   * another, so that concurrent guesses are counted like successive ones. A success ends the count of the pair if its
   * failures concern no other tenant than the account's.
   */
  attempt<T extends { readonly tenant_id: string | null }>(
    account: string,
    address: string,
    read: (tx: Transaction) => Promise<readonly T[]>,
    work: (accounts: readonly T[]) => Promise<T | undefined>,
  ): Promise<T | undefined> {
    const block = addressBlock(address);
    const pair = subject('pair', account, block);
    const alone = subject('address', block);
    return this.turns.run(pair.toString('hex'), async () => {
      // In one message to the database.
      const [failures, accounts] = await this.database.systemRead((tx) =>
        Promise.all([failuresOf(tx, [pair, alone]), read(tx)]),
      );
      this.refuseBlocked(failures);
      const result = await work(accounts);
      if (result === undefined) {
        const tenantIds = [...new Set(accounts.map(({ tenant_id: tenantId }) => tenantId ?? ''))];
        await this.database.system(async (tx) => {
          await this.count(tx, pair, pairRule);
          if (tenantIds.length > 0) await noteAccount(tx, pair, { email: account, address: block, tenantIds });
          await this.count(tx, alone, addressRule);
        });
      } else if (failures.some(({ subject: counted }) => counted.equals(pair))) {
        // Signing in to one account must not reset the count of guesses at others: that of the address stays, and that of the pair
        // if an account of another tenant was tried, where anyone may have made a user with this e-mail. The subject is the primary
        // key: at most one row is deleted, however many users share the e-mail.
        await this.database.system((tx) =>
          tx.query('DELETE FROM login_failures WHERE subject = $1 AND tenant_ids <@ ARRAY[$2]', [
            pair,
            result.tenant_id ?? '',
          ]),
        );
      }
      return result;
    });
  }

  private refuseBlocked(failures: readonly FailureRow[]): void {
    const now = this.clock.now();
    const until = Math.max(0, ...failures.map((row) => row.blocked_until.getTime()));
    if (until > now) {
      throw resourceExhausted('too many failed sign-ins: try again later', Math.ceil((until - now) / 1000));
    }
  }

  private async count(tx: Transaction, counted: Buffer, rule: DelayRule): Promise<void> {
    const now = this.clock.now();
    const { rows } = await tx.query<{ failures: number }>(
      `INSERT INTO login_failures AS f (subject, failures, last_failure_at, blocked_until) VALUES ($1, 1, $2, 'epoch')
       ON CONFLICT (subject) DO UPDATE SET last_failure_at = $2,
         failures = CASE WHEN f.last_failure_at < $3 THEN 1 ELSE f.failures + 1 END
       RETURNING failures`,
      [counted, new Date(now), new Date(now - rule.forgetSeconds * 1000)],
    );
    const seconds = delayAfter(rows[0]!.failures, rule);
    // A time that is only not in the future here would still be so for processes whose clocks are behind.
    if (seconds === 0) return;
    const until = new Date(now + seconds * 1000);
    await tx.query('UPDATE login_failures SET blocked_until = $2 WHERE subject = $1', [counted, until]);
  }

  /**
   * Returns at most `limit` accounts with delays after one, in order of e-mail and address: those of a tenant, or all
   * (null). The address is empty for the delay after wrong second factors, which holds for all addresses.
   */
  async list(
    tx: Transaction,
    tenantId: string | null,
    after: readonly [email: string, address: string] | undefined,
    limit: number,
  ): Promise<LockoutRow[]> {
    const [email, address] = after ?? [null, null];
    const since = new Date(this.clock.now() - pairRule.forgetSeconds * 1000);
    const isOf = (condition: string): string => (tenantId === null ? '' : `AND ${condition}`);
    const { rows } = await tx.query<LockoutRow>(
      `SELECT * FROM (
         SELECT email, address, failures, blocked_until, tenant_ids FROM login_failures
         WHERE email IS NOT NULL AND failures >= $1 AND last_failure_at >= $2 ${isOf('tenant_ids @> ARRAY[$6]')}
         UNION ALL
         SELECT lower(email), '', max(failures), max(blocked_until), array_agg(coalesce(u.tenant_id, ''))
         FROM second_factors f JOIN users u USING (user_id)
         WHERE failures >= $1 AND last_failure_at >= $2 ${isOf('f.tenant_id = $6')} GROUP BY lower(email)
       ) AS delayed
       WHERE $3::text IS NULL OR (email COLLATE "C", address COLLATE "C") > ($3, $4)
       ORDER BY email COLLATE "C", address COLLATE "C" LIMIT $5`,
      [pairRule.free, since, email, address, limit, ...(tenantId === null ? [] : [tenantId])],
    );
    return rows;
  }

  /** Deletes the counts of an account: those that concern a tenant alone, or all (null). */
  async clear(tx: Transaction, account: string, tenantId: string | null): Promise<void> {
    await tx.query(`DELETE FROM login_failures WHERE email = $1 AND ($2::text IS NULL OR tenant_ids = ARRAY[$2])`, [
      account,
      tenantId,
    ]);
  }

  /** Deletes up to `limit` counts that no longer block anyone at this time. Returns their number. */
  sweep(limit: number, now: number): Promise<number> {
    const before = new Date(now - pairRule.forgetSeconds * 1000);
    return this.database.system((tx) =>
      deleteBefore(tx, { table: 'login_failures', key: 'subject', time: 'last_failure_at' }, before, limit),
    );
  }
}

/** An account with delays, as it is stored. */
export interface LockoutRow {
  email: string;
  address: string;
  failures: number;
  blocked_until: Date;
  tenant_ids: string[];
}

/** What is counted of a pair or an address. */
interface FailureRow {
  subject: Buffer;
  blocked_until: Date;
}

async function failuresOf(tx: Transaction, subjects: readonly Buffer[]): Promise<FailureRow[]> {
  const { rows } = await tx.query<FailureRow & Record<string, unknown>>(
    'SELECT subject, blocked_until FROM login_failures WHERE subject = ANY($1)',
    [subjects],
  );
  return rows;
}

/** Records which accounts a count concerns. */
async function noteAccount(
  tx: Transaction,
  counted: Buffer,
  account: { readonly email: string; readonly address: string; readonly tenantIds: readonly string[] },
): Promise<void> {
  await tx.query(
    `UPDATE login_failures SET email = $2, address = $3,
       tenant_ids = ARRAY(SELECT DISTINCT id FROM unnest(tenant_ids || $4::text[]) AS id ORDER BY id)
     WHERE subject = $1`,
    [counted, account.email, account.address, account.tenantIds],
  );
}

const subject = (...parts: readonly string[]): Buffer => createHash('sha256').update(parts.join('\0')).digest();
