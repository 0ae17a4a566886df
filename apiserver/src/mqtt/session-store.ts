// The sessions that outlast their connection (mqtt_sessions).
import type { Transaction } from '../platform/database/database.ts';

/** A connection that begins. */
export interface Beginning {
  readonly deviceId: string;
  readonly clientId: string;
  readonly connectionId: string;
  /** Whether an earlier session is discarded. */
  readonly isClean: boolean;
  /** 0: the session ends with the connection. */
  readonly expirySeconds: number;
}

/** Granted QoS by filter. */
export type StoredSubscriptions = Readonly<Record<string, 0 | 1>>;

/** Added to the expiry while the connection is open. The expiry is extended when half of it has passed. */
export const openSeconds = 7200;

/**
 * Begins the sessions of several devices, each of which replaces the device's earlier one. Returns the subscriptions by
 * device of those that continue an earlier session.
 */
export async function beginSessions(
  tx: Transaction,
  tenantId: string,
  beginnings: readonly Beginning[],
): Promise<Map<string, StoredSubscriptions>> {
  // The last one of a device counts; in order of the ids, so that two transactions do not wait for each other.
  const latest = [...new Map(beginnings.map((beginning) => [beginning.deviceId, beginning])).values()].sort((a, b) =>
    a.deviceId < b.deviceId ? -1 : 1,
  );
  const { rows } = await tx.query<{ device_id: string; subscriptions: StoredSubscriptions }>(
    `SELECT s.device_id, s.subscriptions
     FROM unnest($2::uuid[], $3::text[], $4::boolean[]) AS b (device_id, client_id, is_clean)
     JOIN mqtt_sessions s ON s.tenant_id = $1 AND s.device_id = b.device_id
     WHERE NOT b.is_clean AND s.client_id = b.client_id AND s.expires_at > now()
     ORDER BY s.device_id FOR UPDATE OF s`,
    [
      tenantId,
      latest.map(({ deviceId }) => deviceId),
      latest.map(({ clientId }) => clientId),
      latest.map(({ isClean }) => isClean),
    ],
  );
  const continued = new Map(rows.map((row) => [row.device_id, row.subscriptions]));
  const kept = latest.filter(({ expirySeconds }) => expirySeconds > 0);
  const ended = latest.filter(({ expirySeconds }) => expirySeconds === 0);
  if (ended.length > 0) {
    await tx.query(`DELETE FROM mqtt_sessions WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])`, [
      tenantId,
      ended.map(({ deviceId }) => deviceId),
    ]);
  }
  if (kept.length > 0) {
    await tx.query(
      `INSERT INTO mqtt_sessions (tenant_id, device_id, client_id, connection_id, subscriptions, expires_at)
       SELECT $1, device_id, client_id, connection_id, subscriptions, now() + (seconds + $7) * interval '1 second'
       FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::jsonb[], $6::int4[])
         AS s (device_id, client_id, connection_id, subscriptions, seconds)
       ON CONFLICT (tenant_id, device_id) DO UPDATE SET client_id = excluded.client_id,
         connection_id = excluded.connection_id, subscriptions = excluded.subscriptions, expires_at = excluded.expires_at`,
      [
        tenantId,
        kept.map(({ deviceId }) => deviceId),
        kept.map(({ clientId }) => clientId),
        kept.map(({ connectionId }) => connectionId),
        kept.map(({ deviceId }) => JSON.stringify(continued.get(deviceId) ?? {})),
        kept.map(({ expirySeconds }) => expirySeconds),
        openSeconds,
      ],
    );
  }
  return continued;
}

/** Stores the subscriptions of a connection. Does nothing if a newer connection has the session. */
export async function writeSubscriptions(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  connectionId: string,
  subscriptions: StoredSubscriptions,
): Promise<void> {
  await tx.query(
    `UPDATE mqtt_sessions SET subscriptions = $4 WHERE tenant_id = $1 AND device_id = $2 AND connection_id = $3`,
    [tenantId, deviceId, connectionId, JSON.stringify(subscriptions)],
  );
}

/** A connection whose session has its expiry extended, or begins to expire. */
export interface Stamp {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly connectionId: string;
  readonly seconds: number;
}

/**
 * Sets when sessions expire, from now on, unless a newer connection has them. Looks up each by its key and locks it until the
 * transaction ends, so callers pass some hundreds at a time.
 */
export async function stampSessions(tx: Transaction, stamps: readonly Stamp[]): Promise<void> {
  await tx.query(
    // Locked in the order of beginSessions, so that the two do not deadlock.
    `UPDATE mqtt_sessions m SET expires_at = now() + s.seconds * interval '1 second'
     FROM (
       SELECT tenant_id, device_id, connection_id, seconds
       FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::int4[]) AS s (tenant_id, device_id, connection_id, seconds)
       JOIN mqtt_sessions USING (tenant_id, device_id, connection_id)
       ORDER BY tenant_id, device_id FOR UPDATE OF mqtt_sessions) AS s
     WHERE m.tenant_id = s.tenant_id AND m.device_id = s.device_id AND m.connection_id = s.connection_id`,
    [
      stamps.map(({ tenantId }) => tenantId),
      stamps.map(({ deviceId }) => deviceId),
      stamps.map(({ connectionId }) => connectionId),
      stamps.map(({ seconds }) => seconds),
    ],
  );
}

/** Deletes expired sessions, at most `most`. Returns their number. */
export async function deleteExpired(tx: Transaction, most: number): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM mqtt_sessions m USING (
       SELECT tenant_id, device_id FROM mqtt_sessions WHERE expires_at < now()
       ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS e
     WHERE m.tenant_id = e.tenant_id AND m.device_id = e.device_id`,
    [most],
  );
  return rowCount ?? 0;
}
