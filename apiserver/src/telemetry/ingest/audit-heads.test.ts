// The end of each audit log becomes a leaf in a batch of its tenant.
import { anchoredHeadOf, auditLogId, dataHash } from '@kellet/verify';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { chainAllOf } from '../../platform/audit/audit-chain.ts';
import { auditRecord } from '../../platform/audit/audit-event.ts';
import { insertPending, listAnchors } from '../../platform/audit/audit-store.ts';
import { sleep, systemClock } from '../../platform/clock.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { beginPurge } from '../../tenants/tenant-store.ts';
import { fsck } from '../testing/fsck.ts';
import { TelemetryWriter, writerDefaults } from '../write/group-commit.ts';
import { anchorNextHeads } from './audit-heads.ts';

describe('anchoring audit logs', function () {
  this.timeout(60_000);
  const logger = createLogger('fatal');
  let test: TestDatabase;
  let writer: TelemetryWriter;
  before(async () => {
    test = await createTestDatabase();
    const options = { ...writerDefaults, batchPoints: 10, batchSeconds: 3600 };
    writer = new TelemetryWriter(
      { database: test.database, logger, clock: systemClock, metrics: createMetrics() },
      options,
      () => undefined,
    );
    writer.start();
  });
  after(async () => {
    await writer.stop();
    await test.drop();
  });

  const facts = (tenantId: string) => ({
    ...{ tenantId, action: 'AuthService/CreateUser', result: 'OK', address: '', userAgent: '', requestId: '' },
    ...{ actor: { kind: 'user', id: 'u1', name: '' }, resource: { kind: 'user', id: 'u2' } },
  });
  const happen = async (tenantId: string) => {
    const record = auditRecord(facts(tenantId), newId(), Date.now());
    await test.database.system((tx) => insertPending(tx, [record]));
    await chainAllOf(test.database, systemClock, tenantId);
  };
  const anchor = (before = Date.now()) =>
    anchorNextHeads({ database: test.database, clock: systemClock, writer }, before);
  const anchors = (tenantId: string) => test.database.read(tenantId, (tx) => listAnchors(tx, tenantId, undefined, 100));

  it('is waited for by the purge of a tenant, and anchors nothing once that has begun', async () => {
    const tenantId = 'ending';
    await insertTenant(test.database, tenantId);
    await happen(tenantId);
    const run = (text: string) => test.database.system((tx) => tx.query(text, [tenantId]));
    await run(`UPDATE tenants SET deleted_at = now() - interval '1 day', purge_at = now() WHERE tenant_id = $1`);
    let hasBegun = false;
    let purge: Promise<unknown> | undefined;
    const append = async (points: Parameters<TelemetryWriter['append']>[0]) => {
      purge = test.database.system((tx) => beginPurge(tx, tenantId, false)).then(() => (hasBegun = true));
      await sleep(300);
      expect(hasBegun).to.equal(false);
      return writer.append(points);
    };
    expect(
      await anchorNextHeads({ database: test.database, clock: systemClock, writer: { append } }, Date.now()),
    ).to.equal(1);
    await purge;
    expect(await anchors(tenantId)).to.have.length(1);
    const recorded = async () => (await run('SELECT FROM audit_pending WHERE tenant_id = $1')).rowCount;
    await happen(tenantId);
    expect(await recorded(), 'of a tenant in its purge').to.equal(0);
    await run('UPDATE audit_heads SET sequence = sequence + 1 WHERE tenant_id = $1');
    expect(await anchor()).to.equal(0);
    await run('DELETE FROM audit_heads WHERE tenant_id = $1');
  });

  it('makes a leaf of the newest event of each log with new events, but not of the platform’s', async () => {
    for (const tenantId of ['acme', 'acme', 'other', '']) await happen(tenantId);
    expect(await anchor()).to.equal(2);
    expect(await anchor()).to.equal(0);
    expect((await anchors('acme')).map(({ sequence }) => sequence)).to.deep.equal([2]);

    await happen('acme');
    expect(await anchor(Date.now() - 3600_000), 'too early').to.equal(0);
    expect(await anchor()).to.equal(1);
    const [newest] = await anchors('acme');
    expect(newest!.sequence).to.equal(3);

    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string; time: bigint; payload: string; data_hash: Buffer }>(
        `SELECT device_id, time, payload, data_hash FROM telemetry_points WHERE tenant_id = 'acme' ORDER BY time DESC LIMIT 1`,
      ),
    );
    const { device_id: deviceId, time, payload, data_hash: leaf } = rows[0]!;
    const head = anchoredHeadOf({ tenant_id: 'acme', device_id: deviceId, payload });
    expect(head).to.include({ sequence: 3, hash: newest!.hash });
    expect(deviceId).to.equal(auditLogId('acme'));
    const inputs = { tenantId: 'acme', deviceId, timestampSeconds: Number(time / 1_000_000_000n), payload };
    expect(dataHash(inputs)).to.equal(newest!.dataHash);
    expect(leaf.toString('hex')).to.equal(newest!.dataHash);
    expect((await fsck(test.database)).problems).to.deep.equal([]);
  });

  it('goes on after a process whose clock was ahead has anchored', async () => {
    await insertTenant(test.database, 'early');
    await happen('early');
    const clock = { now: () => Date.now() + 365 * 86_400_000 };
    expect(await anchorNextHeads({ database: test.database, clock, writer }, clock.now())).to.be.greaterThan(0);
    await happen('early');
    expect(await anchor(Date.now() + 1000)).to.equal(1);
    expect((await anchors('early')).map(({ sequence }) => sequence)).to.deep.equal([2, 1]);
  });
});
