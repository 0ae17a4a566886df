// The end of each audit log becomes a leaf in a batch of its tenant.
import { expect } from 'chai';
import { anchoredHeadOf, auditLogId, dataHash } from '@kellet/verify';
import { chainAllOf } from '../../platform/audit/audit-chain.ts';
import { auditRecord } from '../../platform/audit/audit-event.ts';
import { insertPending, listAnchors } from '../../platform/audit/audit-store.ts';
import { systemClock } from '../../platform/clock.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
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
    writer = new TelemetryWriter({ database: test.database, logger, clock: systemClock }, options, () => undefined);
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
});
