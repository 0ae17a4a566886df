// The statements that open and end transactions and limit them to a tenant, to reading, and in time.
import { named, type Statement } from './statement-batch.ts';

/** How long a transaction may idle while its client calls another server, before PostgreSQL ends it. */
const idleMilliseconds = 120_000;

// Unnamed: there is little to parse, and a connection that has lost its prepared statements must still be able to end
// what it has begun.
export const begin: Statement = { text: 'BEGIN' };
export const beginSnapshot: Statement = { text: 'BEGIN ISOLATION LEVEL REPEATABLE READ' };
export const commit: Statement = { text: 'COMMIT' };
export const rollback: Statement = { text: 'ROLLBACK' };

// Settings hold until the transaction ends, as with SET LOCAL, so they work through a pooler. They travel with the
// first statements, so they cost no round trip. A statement of this form is parsed only once.
const columns = (settings: Readonly<Record<string, string>>) =>
  Object.entries(settings).map(([name, value]) => `set_config('${name}', ${value}, true)`);
export const setting = (settings: Readonly<Record<string, string>>) =>
  named('scope', `SELECT ${columns(settings).join(', ')}`);

export const tenantSettings = { role: "'kellet_tenant'", 'kellet.tenant_id': '$1' };
export const readSettings = { transaction_read_only: "'on'" };
export const boundsOf = (milliseconds: number) => ({ statement_timeout: `'${milliseconds}'` });
export const transactionBoundsOf = (milliseconds: number) => ({
  ...boundsOf(milliseconds),
  idle_in_transaction_session_timeout: `'${idleMilliseconds}'`,
});

// Utility statements, after which a transaction may still choose its isolation level.
export const systemBoundsOf = (milliseconds: number): Statement[] =>
  Object.entries(transactionBoundsOf(milliseconds)).map(([name, value]) => ({ text: `SET LOCAL ${name} = ${value}` }));
/** Throws unless a text can be a tenant's id. */
export function checkTenantId(tenantId: string): void {
  if (!/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(tenantId)) throw new Error('not a tenant id');
}
