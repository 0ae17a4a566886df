import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import pg from 'pg';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from './auth/testing/test-platform.ts';
import { allTargets } from './config/targets.ts';
import { createServices } from './create-services.ts';
import { InternalServer } from './internal/server.ts';
import type { Database } from './platform/database/database.ts';
import { Broker } from './platform/events/broker.ts';
import { OutboxRelay } from './platform/events/outbox.ts';
import { rowsRead, totalOf } from './platform/testing/rows-read.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { absentCluster } from './platform/testing/test-kubeconfig.ts';
import { LiveHub } from './telemetry/live/live.ts';

describe('a scrape of the metrics', () => {
  let test: TestDatabase;
  let folder: string;
  const kubeconfig = process.env['KUBECONFIG'];

  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-scrape-'));
    process.env['KUBECONFIG'] = path.join(folder, 'kubeconfig');
    await writeFile(process.env['KUBECONFIG'], absentCluster);
    for (const tenantId of ['acme', 'limited'])
      await insertTenant(test.database, tenantId, { quotas: { anchors_per_day: 24 } });
  });
  after(async () => {
    if (kubeconfig === undefined) delete process.env['KUBECONFIG'];
    else process.env['KUBECONFIG'] = kubeconfig;
    await test.drop();
    await rm(folder, { recursive: true, force: true });
  });

  /** Scrapes what all services of a process register, none of which is started. */
  async function scrape(database: Database): Promise<string> {
    const platform = testPlatform(database, new MovableClock());
    const broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, platform.logger);
    const outbox = new OutboxRelay(database, broker, platform.logger, platform.metrics);
    const internal = new InternalServer(platform.config.controlSecret, platform.logger);
    const { modules } = createServices({ ...platform, broker, outbox }, new Set(allTargets), internal, new LiveHub());
    try {
      return await platform.metrics.metrics();
    } finally {
      for (const module of modules) await module.stop?.();
      await outbox.close();
      await broker.close();
    }
  }

  /** Adds so many rows of each kind that waits or has ended. */
  async function fill(count: number): Promise<void> {
    const client = new pg.Client({ connectionString: test.url });
    await client.connect();
    const statements = [
      `INSERT INTO webhooks (tenant_id, webhook_id, url, secret, events) VALUES ('acme', '01890a5d-ac96-774b-bcce-b302099a8057', '', '', '{}')
       ON CONFLICT DO NOTHING`,
      ...['pending', 'dead', 'delivered', 'delivered', 'delivered'].map(
        (
          status,
        ) => `INSERT INTO webhook_deliveries (tenant_id, webhook_id, event_id, subject, event, status, next_at, finished_at)
          SELECT 'acme', '01890a5d-ac96-774b-bcce-b302099a8057', gen_random_uuid(), 's', '{}', '${status}', now(),
            CASE WHEN '${status}' <> 'pending' THEN now() END FROM generate_series(1, ${count})`,
      ),
      ...['open', 'sealed', 'submitted', 'seen', 'failed', 'confirmed'].map(
        (
          status,
        ) => `INSERT INTO anchor_batches (batch_id, tenant_id, anchor_mode, status, merkle_root, leaves, writer_id, count, created_at, sealed_at)
          SELECT gen_random_uuid(), CASE WHEN n % 2 = 0 THEN 'acme' ELSE 'limited' END, 'merkle', '${status}', sha256(''), sha256(''), gen_random_uuid(), 1, now() - interval '1 hour',
            CASE WHEN '${status}' <> 'open' THEN now() - interval '30 minutes' END FROM generate_series(1, ${count}) AS n`,
      ),
      `INSERT INTO anchor_usage (tenant_id, day, used) VALUES ('limited', (now() AT TIME ZONE 'UTC')::date, 24) ON CONFLICT DO NOTHING`,
      `INSERT INTO outbox_set_aside (event_id, tenant_id, subject, payload, reason) SELECT gen_random_uuid(), 'acme', 's', '{}', 'too large'
       FROM generate_series(1, ${count})`,
      `INSERT INTO rule_points (tenant_id, points, added_at) SELECT 'acme', '', now() - interval '1 minute' FROM generate_series(1, ${count})`,
      'ANALYZE',
    ];
    try {
      for (const text of statements) await client.query(text);
    } finally {
      await client.end();
    }
  }

  it('counts what waits', async () => {
    await fill(20);
    let text = '';
    await rowsRead(test.url, async (database) => (text = await scrape(database)));
    for (const line of [
      'kellet_webhook_deliveries_pending 20',
      'kellet_webhook_deliveries_dead 20',
      'kellet_anchor_batches{status="open"} 20',
      'kellet_anchor_batches{status="sealed"} 20',
      'kellet_anchor_batches{status="failed"} 20',
      'kellet_anchor_quota_waiting 10',
      'kellet_outbox_set_aside 20',
    ])
      expect(text).to.include(`${line}\n`);
    for (const [name, seconds] of [
      ['kellet_anchor_oldest_unconfirmed_seconds', 1800],
      ['kellet_rule_lag_seconds', 60],
    ] as const)
      expect(Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)![1]), name).to.be.within(seconds, seconds + 60);
  });

  it('reads no more rows when three times as many are stored', async () => {
    await fill(11_000);
    const before = await rowsRead(test.url, scrape);
    await fill(22_000);
    let text = '';
    const after = await rowsRead(test.url, async (database) => (text = await scrape(database)));
    expect(text).to.include('kellet_webhook_deliveries_pending 10000\n');
    expect(totalOf(after), `${JSON.stringify([...before])} before, ${JSON.stringify([...after])}`).to.be.at.most(
      totalOf(before) * 1.1,
    );
  });
});
