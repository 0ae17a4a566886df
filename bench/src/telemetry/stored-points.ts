// Counts the points that the database has stored, to check that a benchmark measured what it claims.
import { auditLogId } from '@kellet/verify';
import pg from 'pg';
import type { Environment } from '../environment.ts';

/** Counts what has been stored since it was last asked. */
export class StoredPoints {
  private readonly client: pg.Client;
  private readonly tenantId: string;
  private seen = 0;

  private constructor(client: pg.Client, tenantId: string) {
    this.client = client;
    this.tenantId = tenantId;
  }

  static async open({ databaseUrl, tenantId }: Environment): Promise<StoredPoints> {
    const client = new pg.Client({ connectionString: databaseUrl });
    await client.connect();
    return new StoredPoints(client, tenantId);
  }

  /** Throws unless exactly this many points have been stored since the last call. */
  async expect(acknowledged: number): Promise<void> {
    const { rows } = await this.client.query<{ count: number }>(
      'SELECT count(*)::float8 AS count FROM telemetry_points WHERE tenant_id = $1 AND device_id <> $2',
      // The heads of the audit log are points too, which nobody has sent.
      [this.tenantId, auditLogId(this.tenantId)],
    );
    const stored = rows[0]!.count - this.seen;
    this.seen = rows[0]!.count;
    if (stored !== acknowledged) throw new Error(`${acknowledged} points were acknowledged, but ${stored} are stored`);
  }

  close(): Promise<void> {
    return this.client.end();
  }
}
