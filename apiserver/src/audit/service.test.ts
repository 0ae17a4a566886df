import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { AuditService } from '@kellet/proto/es/kellet/v1/audit_pb';
import { expect } from 'chai';
import { chainAllOf } from '../platform/audit/audit-chain.ts';
import { type AuditFacts, auditRecord } from '../platform/audit/audit-event.ts';
import { insertPending } from '../platform/audit/audit-store.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { Paging } from '../platform/requests/paging.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase } from '../platform/testing/test-database.ts';
import { createAudit } from './service.ts';

const facts: AuditFacts = {
  tenantId: 'acme',
  actor: { kind: 'user', id: 'u1', name: 'ann@acme.test' },
  action: 'AuthService/CreateUser',
  resource: { kind: 'user', id: 'u2' },
  result: 'OK',
  address: '192.0.2.1',
  userAgent: 'test',
  requestId: 'r1',
};
const day = 86_400_000;

/** Returns an audit service that keeps events for 400 days. */
const serviceOn = (database: Database, clock: Clock) =>
  createAudit({
    config: { auditRetentionDays: 400 },
    clock,
    database,
    logger: createLogger('silent'),
    metrics: createMetrics(),
    paging: new Paging(Buffer.alloc(32)),
  });

/** Returns a function that lists the events of a tenant as one of its users. */
function listerOn(database: Database) {
  const { listAuditEvents } = AuditService.method;
  const registry = new ServiceRegistry();
  serviceOn(database, systemClock).register(registry);
  const caller = { ...publicCaller, kind: 'user', tenantId: 'acme', userId: newId() } as const;
  return (filters: MessageInitShape<typeof listAuditEvents.input>) =>
    registry.unary(listAuditEvents, create(listAuditEvents.input, filters), internalContext(caller));
}

describe('the audit service', function () {
  this.timeout(60_000);

  it('removes what is older than the retention, by the clock of the database', async () => {
    const test = await createTestDatabase();
    const records = [500, 390, 1].map((age) => auditRecord(facts, crypto.randomUUID(), Date.now() - age * day));
    await test.database.system((tx) => insertPending(tx, records));
    await chainAllOf(test.database, systemClock, 'acme');
    const service = serviceOn(test.database, { now: () => Date.now() + 1000 * day });
    await service.start?.();
    try {
      const kept = async () => {
        const { rows } = await test.database.systemRead((tx) =>
          tx.query<{ sequence: number }>('SELECT sequence::int4 FROM audit_events ORDER BY sequence'),
        );
        return rows.map(({ sequence }) => sequence);
      };
      await eventually(async () => !(await kept()).includes(1));
      expect(await kept()).to.deep.equal([2, 3]);
    } finally {
      await service.stop?.();
      await test.drop();
    }
  });

  it('finds what concerns an id in whatever case it is asked for', async () => {
    const test = await createTestDatabase();
    const user = newId();
    const record = auditRecord({ ...facts, resource: { kind: 'user', id: user } }, newId(), Date.now());
    await test.database.system((tx) => insertPending(tx, [record]));
    const list = listerOn(test.database);
    const found = async (resourceId: string): Promise<number> => (await list({ resourceId })).auditEvents.length;
    expect([await found(user), await found(user.toUpperCase()), await found(newId())]).to.deep.equal([1, 1, 0]);
    await test.drop();
  });

  it('refuses to look for a result that is no code', async () => {
    const test = await createTestDatabase();
    const list = listerOn(test.database);
    const outcome = (result: string): Promise<string> =>
      list({ result }).then(
        () => 'a list',
        (error: Error) => error.message,
      );
    try {
      for (const result of ['', 'OK', 'PERMISSION_DENIED']) expect(await outcome(result)).to.equal('a list');
      for (const result of ['permission_denied', 'FAILED', 'toString']) {
        expect(await outcome(result)).to.match(/^result must be OK or an error code, one of CANCELLED, /);
      }
    } finally {
      await test.drop();
    }
  });
});
