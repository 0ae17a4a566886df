import { lstat, mkdir, mkdtemp, readFile, rm, stat, symlink, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { mintDeviceKey } from '../auth/device-credentials/device-keys.ts';
import { createAuth } from '../auth/service.ts';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { clusterAway, MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { unknownGroups } from '../device-registry/devices/group-members.ts';
import { coldLock } from '../platform/database/advisory-locks.ts';
import { alone } from '../platform/database/session-lock.ts';
import { newId } from '../platform/ids.ts';
import { openStore } from '../platform/object-store/open-store.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { SealedSecrets } from '../platform/sealed-secrets.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { TestS3 } from '../platform/testing/test-s3.ts';
import { TenantApplier } from '../tenants/tenant-applier.ts';
import { TestProcesses } from '../testing/test-process.ts';
import { sealedColumns } from './reseal.ts';
import { mustStillStand, standstill } from './standstill.ts';
import { runTenantCommand } from './tenant-command.ts';
import { exportTenant } from './tenant-export.ts';
import { importTenant } from './tenant-import.ts';
import { ofTenant, tenantTables } from './tenant-tables.ts';
import { fillTenant } from './testing/test-rows.ts';
import { readLines, writeLines } from './transfer-file.ts';
import {
  exportedColumns,
  exportedTables,
  type FileLine,
  type Line,
  notExported,
  pointsTable,
} from './transfer-format.ts';

const here = 'here-secret'.repeat(4);
const there = 'there-secret'.repeat(4);
const s3 = { endpoint: '', region: '', accessKey: '', secretKey: '' };

describe('an exported tenant', function () {
  this.timeout(120_000);
  let source: TestDatabase;
  let target: TestDatabase;
  let folder: string;
  let file: string;
  const coldName = 'tenant_id=moving/date=2026-01-01/0190a000-0000-7000-8000-000000000000.parquet';
  const store = (name: string) => openStore(pathToFileURL(path.join(folder, name)).href, s3);
  const query = async <Row extends Record<string, unknown>>(at: TestDatabase, text: string, values: unknown[] = []) =>
    (await at.database.system((tx) => tx.query<Row>(text, values))).rows;

  before(async () => {
    [source, target] = await Promise.all([createTestDatabase(), createTestDatabase()]);
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-transfer-'));
    file = path.join(folder, 'moving.kellet');
  });
  after(async () => {
    await rm(folder, { recursive: true });
    await Promise.all([source.drop(), target.drop()]);
  });

  const exportTo = (tenantId: string, to: string, waiting?: () => void) =>
    writeLines(to, (write) =>
      exportTenant(
        {
          ...{ database: source.database, coldStore: store('cold-here'), controlSecret: here, write },
          artifacts: new ArtifactStores('postgres', s3),
          ...(waiting && { waiting }),
        },
        tenantId,
      ),
    );
  const importFrom = (
    from: string,
    tenantId: string,
    secret: string | undefined,
    more: { coldStore?: undefined } = {},
  ) =>
    importTenant(
      {
        ...{ database: target.database, coldStore: store('cold-there'), controlSecret: there },
        ...{ sourceControlSecret: secret, ...more },
      },
      tenantId,
      readLines(from),
    );
  const refusal = (work: Promise<unknown>) =>
    work.then(
      () => 'done',
      (error: Error) => error.message,
    );
  /** Returns the rows of a tenant by table, without what the database assigns or this test changes. */
  const contentOf = async (at: TestDatabase, tenantId: string) => {
    const { tables } = await at.database.system((tx) => tenantTables(tx));
    const content: Record<string, unknown[]> = {};
    for (const table of exportedTables(tables)) {
      const sealed = (sealedColumns[table.name] ?? []).map(({ column }) => column);
      const columns = exportedColumns(table).filter((column) => !sealed.includes(column) && column !== 'writer_id');
      const rows = await query<{ row: string }>(
        at,
        `SELECT (${columns.map((column) => `t.${column}`).join(', ')}, '')::text AS row FROM ${table.name} t WHERE ${ofTenant(table, 't')} ORDER BY 1`,
        [tenantId],
      );
      content[table.name] = rows.map(({ row }) => row);
    }
    return content;
  };

  const { method } = AuthService;
  const serve = (at: TestDatabase) => {
    const registry = new ServiceRegistry();
    createAuth(testPlatform(at.database, new MovableClock()), clusterAway, unknownGroups, async () => []).register(
      registry,
    );
    return <M extends (typeof method)[keyof typeof method]>(of: M, request: MessageInitShape<M['input']>) =>
      registry.unary(of, create(of.input, request) as MessageShape<M['input']>, internalContext(publicCaller));
  };

  it('brings artifacts from S3 into an installation that is running, which accepts its keys at once', async () => {
    const bucket = await TestS3.start('artifacts');
    const processes = await TestProcesses.create(target.url);
    try {
      await fillTenant(source.database, 'cloudy');
      const deviceId = '0190a000-0000-7000-8000-000000000009';
      const key = await source.database.tenant('cloudy', (tx) => mintDeviceKey(tx, 'cloudy', deviceId));
      const artifactStore = 's3://artifacts/kellet';
      await query(
        source,
        `WITH made AS (INSERT INTO artifacts (tenant_id, sha256, size_bytes, store, prefix)
           VALUES ('cloudy', sha256('c'), 1500000, $1, 'cloudy/a') RETURNING tenant_id, sha256)
         INSERT INTO artifact_parts (tenant_id, sha256, start_byte, size_bytes, name)
         SELECT tenant_id, sha256, 0, 1500000, 'cloudy/a/0' FROM made`,
        [artifactStore],
      );
      await openStore(artifactStore, bucket.settings).put('cloudy/a/0', Buffer.alloc(1_500_000, 5));
      await query(source, `DELETE FROM cold_files WHERE tenant_id = 'cloudy'`);
      const running = await processes.start({});
      const validate = async (): Promise<number> => {
        const url = `http://127.0.0.1:${running.ports.restPort}/api/v1/auth/validate`;
        const headers = { 'x-api-key': key, 'content-type': 'application/json' };
        return (await fetch(url, { method: 'POST', headers, body: JSON.stringify({ token: key }) })).status;
      };
      expect(await validate()).to.equal(401);
      const to = path.join(folder, 'cloudy.kellet');
      await writeLines(to, (write) =>
        exportTenant(
          {
            ...{ database: source.database, coldStore: store('cold-here'), controlSecret: here, write },
            artifacts: new ArtifactStores(artifactStore, bucket.settings),
          },
          'cloudy',
        ),
      );
      await bucket.kill();
      await importTenant(
        {
          database: target.database,
          coldStore: store('cold-there'),
          controlSecret: here,
          sourceControlSecret: undefined,
        },
        'cloudy',
        readLines(to),
      );
      const [artifact] = await query<{ size: number; store: string; same: boolean }>(
        target,
        `SELECT sum(length(data))::int4 AS size, min(store) AS store,
           bool_and(data = decode(repeat('05', length(data)), 'hex')) AS same
         FROM artifact_chunks JOIN artifacts USING (tenant_id, sha256) WHERE tenant_id = 'cloudy' AND sha256 = sha256('c')`,
      );
      expect(artifact).to.deep.equal({ size: 1_500_000, store: '', same: true });
      // The refusal of the key is remembered for two seconds.
      await eventually(async () => (await validate()) === 200);
    } finally {
      await processes.kill();
      await processes.remove();
      await bucket.stop();
    }
  });

  it('has every point that another process acknowledged, also one that does not hear of the suspension', async () => {
    const processes = await TestProcesses.create(source.url);
    const messages: string[] = [];
    const { config, logger, audit } = testPlatform(source.database, new MovableClock());
    const export_ = (to: string) =>
      runTenantCommand(['export', 'busy', '--to', to], {
        ...{ config, logger, audit, database: source.database, write: (line) => messages.push(line) },
        openKubernetes: () => expect.fail('an export needs no cluster'),
      });
    const to = path.join(folder, 'busy.kellet');
    let isOver = false;
    try {
      await insertTenant(source.database, 'busy');
      const deviceId = newId();
      await query(
        source,
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ('busy', $1, 'd', 'd')`,
        [deviceId],
      );
      const key = await source.database.tenant('busy', (tx) => mintDeviceKey(tx, 'busy', deviceId));
      const { ports } = await processes.start({});
      const acknowledged: number[] = [];
      const refused: number[] = [];
      let last = 0;
      const send = async (): Promise<void> => {
        while (!isOver) {
          const value = (last += 1);
          const response = await fetch(`http://127.0.0.1:${ports.restPort}/api/v1/telemetry`, {
            method: 'POST',
            headers: { 'x-api-key': key, 'content-type': 'application/json' },
            body: JSON.stringify({
              points: [{ device_id: deviceId, timestamp: new Date().toISOString(), numeric_values: { value } }],
            }),
          });
          const { accepted = 0 } = (await response.json()) as { accepted?: number };
          (accepted === 1 ? acknowledged : refused).push(value);
          await sleep(20);
        }
      };
      const sending = Promise.all([send(), send()]);
      await eventually(() => acknowledged.length > 10);
      expect(await export_(to)).to.equal(1);
      expect(messages.join()).to.contain('the tenant busy is not suspended');
      // Without the notification.
      await query(source, `UPDATE tenants SET suspended_at = now() WHERE tenant_id = 'busy'`);
      expect(await export_(to), messages.join('\n')).to.equal(0);
      const before = acknowledged.length;
      isOver = true;
      await sending;
      expect(acknowledged.length, 'points accepted after the export').to.equal(before);
      expect(refused.length).to.be.greaterThan(0);
      const exported = new Set<number>();
      let table = '';
      for await (const line of readLines(to)) {
        if (!Array.isArray(line)) table = 'table' in line ? line.table : '';
        else if (table === pointsTable) exported.add(Number(/"value":(\d+)/.exec(line.join())![1]));
      }
      expect(acknowledged.filter((value) => !exported.has(value))).to.deep.equal([]);
    } finally {
      isOver = true;
      await processes.kill();
      await processes.remove();
    }
  });

  it('is refused if it was served again meanwhile', async () => {
    await insertTenant(source.database, 'back');
    const { database } = source;
    const settled = { settle: 0, waiting: () => undefined };
    expect(await refusal(standstill(database, 'nobody', settled))).to.equal('there is no tenant nobody');
    expect(await refusal(standstill(database, 'back', settled))).to.contain('is not suspended');
    await query(source, `UPDATE tenants SET suspended_at = now() WHERE tenant_id = 'back'`);
    const waits: number[] = [];
    await standstill(database, 'back', { settle: 300, waiting: (seconds) => waits.push(seconds) });
    const since = await standstill(database, 'back', settled);
    await mustStillStand(database, 'back', since);
    // Suspended once more, after it was served.
    await query(source, `UPDATE tenants SET suspended_at = now() WHERE tenant_id = 'back'`);
    expect(await refusal(mustStillStand(database, 'back', since))).to.contain('was served again');
    await query(source, `UPDATE tenants SET suspended_at = NULL WHERE tenant_id = 'back'`);
    expect(await refusal(mustStillStand(database, 'back', since))).to.contain('was served again');
    expect(waits).to.deep.equal([1]);
  });

  it('is the same in another database, with every row, file, key and secret', async () => {
    const applier = new TenantApplier(testPlatform(source.database, new MovableClock()));
    const login = { email: 'admin@moving.test', password: 'correct horse battery' };
    await fillTenant(source.database, 'moving');
    await fillTenant(source.database, 'staying');
    await fillTenant(target.database, 'neighbour');
    await applier.apply(create(ObjectMetaSchema, { tenantId: 'moving', name: 'moving' }), {
      ...{ adminEmail: login.email, adminPassword: login.password },
    });
    const key = await source.database.tenant('moving', (tx) =>
      mintDeviceKey(tx, 'moving', '0190a000-0000-7000-8000-000000000000'),
    );
    const { refreshToken } = await serve(source)(method.login, login);
    // An artifact outside of the database, in two parts, and a cold file.
    const artifactStore = pathToFileURL(path.join(folder, 'artifacts')).href;
    await query(
      source,
      `INSERT INTO artifacts (tenant_id, sha256, size_bytes, store, prefix) VALUES ('moving', sha256('x'), 2097155, $1, 'moving/a')`,
      [artifactStore],
    );
    for (const [start, size] of [
      [0, 2_097_152],
      [2_097_152, 3],
    ] as const) {
      await openStore(artifactStore, s3).put(`moving/a/${start}`, Buffer.alloc(size, 7));
      await query(
        source,
        `INSERT INTO artifact_parts (tenant_id, sha256, start_byte, size_bytes, name)
         VALUES ('moving', sha256('x'), $1, $2, $3)`,
        [start, size, `moving/a/${start}`],
      );
    }
    await query(
      source,
      `UPDATE cold_files SET file_id = '0190a000-0000-7000-8000-000000000000', date = '2026-01-01', bytes = 1500000, place = 'own',
         state = 'live' WHERE tenant_id = 'moving'`,
    );
    const bytes = Buffer.alloc(1_500_000, 3);
    await mkdir(path.join(folder, 'cold-here', path.dirname(coldName)), { recursive: true });
    await writeFile(path.join(folder, 'cold-here', coldName), bytes);
    const webhookSecret = new SealedSecrets(here, 'webhook secrets').seal('moving', 'quiet');
    await query(source, `UPDATE webhooks SET secret = $1 WHERE tenant_id = 'moving'`, [webhookSecret]);
    const authorities = await query<{ authority_id: string }>(
      source,
      `SELECT authority_id FROM device_authorities WHERE tenant_id = 'moving'`,
    );
    for (const { authority_id: id } of authorities) {
      const sealed = new SealedSecrets(here, 'device certificate authorities').seal(`moving/${id}`, 'authority key');
      await query(source, 'UPDATE device_authorities SET private_key = $1 WHERE authority_id = $2', [sealed, id]);
    }
    await query(source, `UPDATE rules SET actions = $1 WHERE tenant_id = 'moving'`, [
      JSON.stringify([{ kind: 'webhook', url: 'https://x.test', secret: webhookSecret }]),
    ]);
    for (const [table, column, value] of [
      ['rule_actions', 'action', '{}'],
      ['sso_providers', 'client_secret', new SealedSecrets(here, 'single sign-on').seal('moving/idp', 'client')],
    ] as const) {
      const renamed = table === 'sso_providers' ? `, provider = 'idp'` : '';
      await query(source, `DELETE FROM sso_identities WHERE tenant_id = 'moving'`);
      await query(source, `UPDATE ${table} SET ${column} = $1${renamed} WHERE tenant_id = 'moving'`, [value]);
    }

    // A batch that is open, with one point.
    await query(
      source,
      `WITH point AS (
         INSERT INTO telemetry_points (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload)
         VALUES (5, gen_random_uuid(), gen_random_uuid(), 0, 'moving', sha256('p'), '{}') RETURNING batch_id)
       INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id)
       SELECT 'moving', batch_id, 'merkle', 'open', gen_random_uuid() FROM point`,
    );
    // Another point of it is cold already: its leaf is only where it was recorded.
    await query(
      source,
      `INSERT INTO open_batch_leaves (batch_id, segment_id, leaf_indexes, leaves, devices)
       SELECT batch_id, 1, '{1}', sha256('cold'), ARRAY[gen_random_uuid()] FROM anchor_batches
       WHERE tenant_id = 'moving' AND status = 'open'`,
    );
    await query(source, `UPDATE deleted_devices SET forget_at = now() - interval '1 day' WHERE tenant_id = 'moving'`);
    const before = await contentOf(target, 'neighbour');
    const exported = await exportTo('moving', file);
    expect((await stat(file)).mode & 0o777).to.equal(0o600);
    expect(await importFrom(file, 'moving', here)).to.equal(exported);

    // The others are looked at below.
    const altered = [
      'tenants',
      'artifacts',
      'artifact_chunks',
      'refresh_tokens',
      'chain_transactions',
      'anchor_batches',
      'unpacked_leaves',
      'open_batch_leaves',
    ];
    const [want, have] = [await contentOf(source, 'moving'), await contentOf(target, 'moving')];
    for (const [table, rows] of Object.entries(want)) {
      if (altered.includes(table)) continue;
      expect(have[table], table).to.deep.equal(rows);
    }
    // Whether the namespace of this name is the tenant's in this cluster, its operator finds out.
    const row = (database: TestDatabase) =>
      query(
        database,
        `SELECT to_jsonb(t) - 'namespace_confirmed' AS row, namespace_confirmed FROM tenants t WHERE tenant_id = 'moving'`,
      );
    const [theirs, ours] = [await row(source), await row(target)];
    expect(theirs[0]).to.include({ namespace_confirmed: true });
    expect(ours).to.deep.equal([{ ...theirs[0], namespace_confirmed: false }]);
    // The points that came with a deleted device are counted before it is forgotten.
    expect(
      await query(
        target,
        `SELECT count(*)::int4 > 0 AS some, bool_and(forget_at > now() + interval '6 days') AS later
         FROM deleted_devices WHERE tenant_id = 'moving'`,
      ),
    ).to.deep.equal([{ some: true, later: true }]);
    expect(await contentOf(target, 'neighbour')).to.include.keys(Object.keys(before));
    expect((await contentOf(target, 'neighbour'))['device_counts']).to.deep.equal(before['device_counts']);
    expect(await readFile(path.join(folder, 'cold-there', coldName))).to.deep.equal(bytes);
    const [artifact] = await query<{ size: number; store: string; same: boolean }>(
      target,
      `SELECT sum(length(data))::int4 AS size, min(store) AS store, bool_and(data = repeat(E'\\\\007', length(data))::bytea) AS same
       FROM artifact_chunks JOIN artifacts USING (tenant_id, sha256) WHERE tenant_id = 'moving' AND sha256 = sha256('x')`,
    );
    expect(artifact).to.include({ size: 2_097_155, store: '' });

    const [secrets] = await query<{ webhook: string; rule: string; client: string }>(
      target,
      `SELECT secret AS webhook, (SELECT actions->0->>'secret' FROM rules r WHERE r.tenant_id = w.tenant_id) AS rule,
         (SELECT client_secret FROM sso_providers p WHERE p.tenant_id = w.tenant_id) AS client
       FROM webhooks w WHERE tenant_id = 'moving'`,
    );
    for (const sealed of [secrets!.webhook, secrets!.rule]) {
      expect(new SealedSecrets(there, 'webhook secrets').open('moving', sealed)).to.equal('quiet');
    }
    expect(new SealedSecrets(there, 'single sign-on').open('moving/idp', secrets!.client)).to.equal('client');

    const moved = await query<{ authority_id: string; private_key: string }>(
      target,
      `SELECT authority_id, private_key FROM device_authorities WHERE tenant_id = 'moving'`,
    );
    expect(moved).to.have.length(authorities.length).and.not.to.have.length(0);
    for (const { authority_id: id, private_key: sealed } of moved) {
      const secret = new SealedSecrets(there, 'device certificate authorities').open(`moving/${id}`, sealed);
      expect(secret).to.equal('authority key');
    }

    const call = serve(target);
    expect((await call(method.validateToken, { token: key })).deviceId).to.equal(
      '0190a000-0000-7000-8000-000000000000',
    );
    expect((await call(method.login, login)).accessToken).not.to.equal('');
    expect((await call(method.refresh, { refreshToken })).accessToken).not.to.equal('');
    expect(
      await query(
        target,
        `SELECT status, count, leaves = sha256('p') || sha256('cold') AS same FROM anchor_batches WHERE tenant_id = 'moving' ORDER BY status DESC`,
      ),
    ).to.deep.equal([
      { status: 'sealed', count: 2, same: true },
      { status: 'confirmed', count: 0, same: null },
    ]);
    // Its points are complete, in segments that can be indexed.
    expect(
      await query(
        target,
        `SELECT count(*)::int4 AS open FROM telemetry_writers JOIN telemetry_segments USING (writer_id) WHERE closed_at IS NULL`,
      ),
    ).to.deep.equal([{ open: 0 }]);
    expect(await refusal(importFrom(file, 'moving', here))).to.contain('has or had a tenant moving');
  });

  it('is written to a file that nobody else can read, whatever is there already', async () => {
    const written = path.join(folder, 'private.kellet');
    const foreign = path.join(folder, 'foreign');
    await writeFile(foreign, '', { mode: 0o644 });
    await symlink(foreign, `${written}.partial`);
    await writeLines(written, (write) => write({ end: true, rows: 0 }));
    expect((await lstat(written)).mode & 0o170777).to.equal(0o100600);
    expect(await readFile(foreign, 'utf8')).to.equal('');
  });

  it('is not imported from a damaged file, by another release or with another secret, and leaves nothing', async () => {
    const copy = path.join(folder, 'other.kellet');
    await fillTenant(source.database, 'refused');
    await query(source, `DELETE FROM cold_files WHERE tenant_id = 'refused'`);
    for (const table of ['webhooks', 'sso_providers'])
      await query(source, `DELETE FROM ${table} WHERE tenant_id = 'refused'`);
    const sealed = new SealedSecrets(here, 'webhook secrets').seal('refused', 'x');
    await query(
      source,
      `INSERT INTO webhooks (tenant_id, webhook_id, url, secret, events) VALUES ('refused', gen_random_uuid(), 'u', $1, '{}')`,
      [sealed],
    );
    await query(source, `UPDATE rules SET actions = '[]' WHERE tenant_id = 'refused'`);
    await exportTo('refused', copy);
    expect(await refusal(importFrom(copy, 'moving2', here))).to.equal('this is an export of the tenant refused');
    expect(await refusal(importFrom(copy, 'refused', undefined))).to.contain('another control secret');
    expect(await refusal(importFrom(copy, 'refused', 'wrong'.repeat(8)))).to.contain('KELLET_SOURCE_CONTROL_SECRET');
    await query(target, `INSERT INTO schema_migrations (name, checksum) VALUES ('9999_later.sql', '')`);
    expect(await refusal(importFrom(copy, 'refused', here))).to.contain('another release (9999_later.sql)');
    await query(target, `DELETE FROM schema_migrations WHERE name = '9999_later.sql'`);
    const { size } = await stat(copy);
    await truncate(copy, size - 100);
    expect(await refusal(importFrom(copy, 'refused', here))).to.match(/the file is (damaged|cut off)/);
    await writeFile(copy, 'no such file');
    expect(await refusal(importFrom(copy, 'refused', here))).to.contain('the file is damaged');
    expect(await refusal(importFrom(`${copy}.none`, 'refused', here))).to.contain('cannot be read: ENOENT');
    const { tables } = await target.database.system((tx) => tenantTables(tx));
    for (const { name, owner } of tables) {
      if (owner !== 'tenant_id') continue;
      expect(await query(target, `SELECT FROM ${name} WHERE tenant_id = 'refused'`), name).to.deep.equal([]);
    }
  });

  it('is refused with a cold file that is cut off or larger than any, before that fills the memory', async () => {
    const copy = path.join(folder, 'files.kellet');
    await fillTenant(source.database, 'cut');
    await query(source, `DELETE FROM cold_files WHERE tenant_id = 'cut'`);
    await exportTo('cut', copy);
    const nameOfFile = () => `tenant_id=cut/date=2026-01-01/${newId()}.parquet`;
    let sent = 0;
    async function* withFiles(pieces: () => Iterable<FileLine>): AsyncGenerator<Line> {
      for await (const line of readLines(copy)) {
        if ('end' in line) yield* pieces();
        yield line;
      }
    }
    const attempt = (pieces: () => Iterable<FileLine>) =>
      refusal(
        importTenant(
          {
            ...{ database: target.database, coldStore: store('cold-there'), controlSecret: here },
            sourceControlSecret: undefined,
          },
          'cut',
          withFiles(pieces),
        ),
      );
    const data = Buffer.alloc(1024 * 1024).toString('base64');
    expect(
      await attempt(function* () {
        yield { file: nameOfFile(), data, last: false };
        yield { file: nameOfFile(), data, last: true };
      }),
    ).to.match(/^the cold file tenant_id=cut\/.* is cut off$/);
    expect(await attempt(() => [{ file: nameOfFile(), data, last: false }])).to.equal('the file is cut off');
    expect(
      await attempt(function* () {
        for (const file = nameOfFile(); sent < 1000; sent++) yield { file, data, last: false };
      }),
    ).to.match(/is larger than any$/);
    expect(sent).to.be.lessThan(110);
    expect(await query(target, `SELECT FROM tenants WHERE tenant_id = 'cut'`)).to.deep.equal([]);
  });

  it('waits while another process turns points cold', async () => {
    let stop = (): void => undefined;
    const stopped = new Promise<void>((resolve) => (stop = resolve));
    let waited = 0;
    const work = alone(source.database, { key: coldLock, name: 'cold-storage' }, async () => {
      const exported = refusal(
        exportTo('nobody', path.join(folder, 'nobody'), () => {
          waited += 1;
          stop();
        }),
      );
      await stopped;
      finished = exported;
    });
    let finished: Promise<string> | undefined;
    expect(await work).to.equal(true);
    expect(await finished).to.equal('there is no tenant nobody');
    expect(waited).to.be.at.least(1);
  });

  it('cannot bring rows of other tenants', async () => {
    const forged = path.join(folder, 'forged.kellet');
    for (const [table, change] of [
      ['users', (row: unknown) => JSON.parse(JSON.stringify(row).replace('"forger"', '"neighbour"')) as never],
      ['users', (row: unknown) => JSON.parse(JSON.stringify(row).replace('"forger"', 'null')) as never],
    ] as const) {
      if ((await query(source, `SELECT FROM tenants WHERE tenant_id = 'forger'`)).length === 0)
        await fillTenant(source.database, 'forger');
      let current = '';
      await query(source, `DELETE FROM cold_files WHERE tenant_id = 'forger'`);
      await writeLines(forged, (write) =>
        exportTenant(
          {
            ...{ database: source.database, coldStore: undefined, controlSecret: there },
            artifacts: new ArtifactStores('postgres', s3),
            write: (line) => {
              if ('table' in line) current = line.table;
              return write(Array.isArray(line) && current === table ? change(line) : line);
            },
          },
          'forger',
        ),
      );
      expect(await refusal(importFrom(forged, 'forger', undefined))).to.equal(
        'a row of users belongs to another tenant',
      );
    }
  });

  it('cannot bring administrators of the platform, or sessions of other users', async () => {
    const copy = path.join(folder, 'elevated.kellet');
    const administrator = '0190a000-0000-7000-8000-00000000ad01';
    await query(
      target,
      `INSERT INTO users (user_id, email, role, password_hash) VALUES ($1, 'root@example.com', 'platform_admin', 'x')`,
      [administrator],
    );
    await fillTenant(source.database, 'elevated');
    await query(source, `DELETE FROM cold_files WHERE tenant_id = 'elevated'`);
    const importWith = async (
      table: string,
      change: (columns: readonly string[], row: (string | null)[]) => Line[],
    ) => {
      let columns: readonly string[] = [];
      let current = '';
      let rows = 0;
      await writeLines(copy, (write) =>
        exportTenant(
          {
            ...{ database: source.database, coldStore: undefined, controlSecret: there },
            artifacts: new ArtifactStores('postgres', s3),
            write: async (line) => {
              if ('table' in line) [current, columns] = [line.table, line.columns];
              const isRow = Array.isArray(line) && current === table;
              const lines = isRow ? change(columns, line as (string | null)[]) : [line];
              rows += lines.filter((one) => Array.isArray(one)).length;
              for (const one of lines) await write('end' in one ? { end: true, rows } : one);
            },
          },
          'elevated',
        ),
      );
      return refusal(importFrom(copy, 'elevated', undefined));
    };
    // Before the row of the user another one, which has no tenant_id.
    const asAdministrator = (columns: readonly string[], row: (string | null)[]): Line[] => {
      const kept = columns.filter((column) => !['tenant_id', 'customer_id'].includes(column));
      const values = kept.map((column) => {
        if (column === 'role') return 'platform_admin';
        return column === 'user_id' ? administrator.replace(/1$/, '2') : row[columns.indexOf(column)]!;
      });
      return [{ table: 'users', columns: kept }, values, { table: 'users', columns }, row];
    };
    expect(await importWith('users', asAdministrator)).to.equal('the rows of users do not say whose they are');
    const ofAdministrator = (columns: readonly string[], row: (string | null)[]): Line[] => [
      row.map((value, index) => (columns[index] === 'user_id' ? administrator : value)),
    ];
    for (const table of ['sessions', 'second_factors']) {
      expect(await importWith(table, ofAdministrator)).to.equal(
        `rows of ${table} refer to rows that the tenant does not have`,
      );
    }
    expect(await query(target, `SELECT user_id FROM users WHERE role = 'platform_admin'`)).to.deep.equal([
      { user_id: administrator },
    ]);
  });

  it('contains every table with data of tenants, except those that are listed with a reason', async () => {
    const { tables } = await source.database.system((tx) => tenantTables(tx));
    const exported = exportedTables(tables).map(({ name }) => name);
    const missing = tables
      .filter(({ name, parent }) => parent === undefined && !exported.includes(name))
      .map(({ name }) => name);
    expect(missing.sort()).to.deep.equal(Object.keys(notExported).sort());
    expect(exported).to.include(pointsTable);
    // A row refers to rows of tables before it.
    for (const { name, references } of exportedTables(tables)) {
      for (const { table } of references)
        expect(exported.indexOf(table), `${name} → ${table}`).to.be.at.most(exported.indexOf(name));
    }
  });
});
