import { create, toJson } from '@bufbuild/protobuf';
import { AuditEventSchema } from '@kellet/proto/es/kellet/v1/audit_pb';
import { AuditLogVerifier } from '@kellet/verify';
import { expect } from 'chai';
import { systemClock } from '../clock.ts';
import { Database } from '../database/database.ts';
import { createLogger } from '../observability/logger.ts';
import { createMetrics } from '../observability/metrics.ts';
import { beginTrace, inTrace, setTraceOwner } from '../observability/tracing.ts';
import { eventually } from '../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { TcpProxy } from '../testing/test-tcp-proxy.ts';
import { chainAllOf, chainNext } from './audit-chain.ts';
import {
  auditEventJson,
  auditEventMessage,
  type AuditFacts,
  auditRecord,
  chainEvents,
  emptyHead,
} from './audit-event.ts';
import { type AuditFilters, deleteExpired, insertPending, listEvents } from './audit-store.ts';
import { AuditTrail } from './audit-trail.ts';

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
const noFilters: AuditFilters = { actor: '', action: '', resourceId: '', result: '', start: undefined, end: undefined };

describe('an audit event', () => {
  const id = '0198f3a2-7c41-7d3e-9b52-4f6a8c1e2d30';

  it('has the hash of its canonical JSON, and continues the one before', () => {
    const records = [0, 1, 1500].map((time) => auditRecord(facts, id, 1_760_000_000_000 + time));
    const events = chainEvents(emptyHead, records);
    expect(events.map(({ sequence }) => sequence)).to.deep.equal([1, 2, 3]);
    expect(events.map(({ previousHash }) => previousHash)).to.deep.equal([
      '0'.repeat(64),
      events[0]!.hash,
      events[1]!.hash,
    ]);
    const verifier = new AuditLogVerifier();
    for (const [index, event] of events.entries()) verifier.add(JSON.stringify(auditEventJson(event)), index + 1);
    expect(verifier.finish()).to.deep.equal({ verdict: 'chained', events: 3, first: 1, last: 3 });
  });

  it('has the hash of what the API shows, with empty fields', () => {
    const blank = {
      ...facts,
      actor: { kind: 'public', id: '', name: '' },
      resource: { kind: '', id: '' },
      address: '',
    };
    const [event] = chainEvents(emptyHead, [auditRecord(blank, id, 1_760_000_000_000)]);
    const options = { useProtoFieldName: true, alwaysEmitImplicit: true };
    const shown = toJson(AuditEventSchema, create(AuditEventSchema, auditEventMessage(event!)), options);
    expect(shown).to.have.all.keys([
      ...['event_id', 'time', 'actor', 'action', 'resource', 'result', 'address', 'user_agent', 'request_id'],
      ...['sequence', 'previous_hash', 'hash'],
    ]);
    const verifier = new AuditLogVerifier();
    verifier.add(JSON.stringify(shown), 1);
    expect(verifier.finish().verdict).to.equal('chained');
  });

  it('contains text of clients in a form that can be stored and hashed', () => {
    const odd = auditRecord({ ...facts, userAgent: `a\0b\ud800${'x'.repeat(300)}`, requestId: '\ud83d\ude00' }, id, 0);
    expect(odd.userAgent).to.equal(`ab\ufffd${'x'.repeat(252)}`);
    expect(odd.requestId).to.equal('😀');
    expect(() => chainEvents(emptyHead, [odd])).not.to.throw();
  });
});

describe('the audit log', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let trail: AuditTrail;
  const logger = createLogger('silent');

  beforeEach(async () => {
    test = await createTestDatabase();
    trail = new AuditTrail({ database: test.database, clock: systemClock, logger, metrics: createMetrics() });
  });
  afterEach(async () => {
    await trail.close();
    await test.drop();
  });

  const list = async (tenantId = 'acme', filters: Partial<AuditFilters> = {}, limit = 10_000) => {
    await chainAllOf(test.database, systemClock, tenantId);
    const found = await test.database.systemRead((tx) =>
      listEvents(tx, tenantId, { ...noFilters, ...filters }, undefined, limit),
    );
    return found.map(({ event }) => event);
  };
  const verdictOf = (events: Awaited<ReturnType<typeof list>>) => {
    const verifier = new AuditLogVerifier();
    for (const [index, event] of events.entries()) verifier.add(JSON.stringify(auditEventJson(event)), index + 1);
    return verifier.finish();
  };
  const refusal = async (statement: string): Promise<string> => {
    try {
      await test.database.system((tx) => tx.query(statement));
    } catch (error) {
      return (error as Error).message;
    }
    return '';
  };

  it('gives every event a position, without a gap, whichever process chains them', async () => {
    const recorded = Array.from({ length: 1200 }, (_, index) =>
      trail.record({ ...facts, tenantId: index % 3 === 0 ? 'other' : 'acme', requestId: String(index) }),
    );
    const chaining = Array.from({ length: 4 }, () => list());
    await Promise.all([...recorded, ...chaining]);
    const [acme, other] = [await list(), await list('other')];
    expect(acme).to.have.length(800);
    expect(verdictOf(acme)).to.deep.equal({ verdict: 'chained', events: 800, first: 1, last: 800 });
    expect(verdictOf(other)).to.include({ verdict: 'chained', last: 400 });
    const sent = acme.toReversed().map(({ requestId }) => Number(requestId));
    expect(sent).to.deep.equal(sent.toSorted((one, two) => one - two));
    const { rows } = await test.database.system((tx) =>
      tx.query<{ subject: string }>(`SELECT subject FROM outbox WHERE tenant_id = 'other' LIMIT 1`),
    );
    expect(rows[0]!.subject).to.match(/^audit\.event\.other\.[0-9a-f-]{36}$/);
  });

  it('is published with the time at which each event happened', async () => {
    const happened = Date.UTC(2026, 0, 2, 3, 4, 5, 678);
    const record = auditRecord(facts, '0198f3a2-7c41-7d3e-9b52-4f6a8c1e2d30', happened);
    await test.database.system((tx) => insertPending(tx, [record]));
    await list();
    const { rows } = await test.database.system((tx) => tx.query<{ payload: string }>('SELECT payload FROM outbox'));
    const time = new Date(happened).toISOString();
    const [event] = rows.map(({ payload }) => JSON.parse(payload) as { time: string; data: { time: string } });
    expect([event!.time, event!.data.time]).to.deep.equal([time, time]);
  });

  it('keeps one copy of an event that was written twice', async () => {
    const record = auditRecord(facts, '0198f3a2-7c41-7d3e-9b52-4f6a8c1e2d30', Date.now());
    await test.database.system((tx) => insertPending(tx, [record, record]));
    expect(await list()).to.have.length(1);
    await test.database.system((tx) => insertPending(tx, [record]));
    expect(await chainNext(test.database, systemClock)).to.equal(1);
    expect(await list()).to.have.length(1);
  });

  it('refuses to change, delete or truncate the events', async () => {
    await trail.record(facts);
    await list();
    const statements = [
      `UPDATE audit_events SET actor_name = 'nobody'`,
      'DELETE FROM audit_events',
      'TRUNCATE audit_events',
    ];
    for (const statement of statements) expect(await refusal(statement), statement).to.match(/append-only/);
    const asTenant = test.database.tenant('acme', (tx) => tx.query('DELETE FROM audit_events'));
    expect(await asTenant.catch((error: Error) => error.message)).to.match(/permission denied/);
    expect(await list()).to.have.length(1);
    // What a purge does, and only within its transaction.
    await test.database.system(async (tx) => {
      await tx.query(`SET LOCAL kellet.audit_removal = 'purge'`);
      await tx.query(`DELETE FROM audit_events WHERE tenant_id = 'acme'`);
    });
    expect(await list()).to.deep.equal([]);
  });

  it('shows a tenant only its own events', async () => {
    await trail.record(facts);
    await trail.record({ ...facts, tenantId: 'other' });
    await trail.record({ ...facts, tenantId: '' });
    await list();
    const { rows } = await test.database.read('acme', (tx) =>
      tx.query<{ tenant_id: string }>('SELECT tenant_id FROM audit_events'),
    );
    expect(rows).to.deep.equal([{ tenant_id: 'acme' }]);
  });

  it('removes old events only from the beginning, so that the chain of the others stays intact', async () => {
    const day = 86_400_000;
    const now = Date.now();
    // The clock of one process was behind.
    const ages = [500, 450, 401, 10, 405, 1];
    const records = ages.map((age) => auditRecord(facts, crypto.randomUUID(), now - age * day));
    await test.database.system((tx) => insertPending(tx, records));
    await list();
    const expire = (limit: number) => test.database.system((tx) => deleteExpired(tx, 'acme', 400, limit));
    expect([await expire(2), await expire(2), await expire(2)]).to.deep.equal([2, 1, 0]);
    expect(verdictOf(await list())).to.deep.equal({ verdict: 'chained', events: 3, first: 4, last: 6 });
    await test.database.system((tx) => deleteExpired(tx, 'acme', -1, 100));
    expect(await list()).to.deep.equal([]);
    await trail.record(facts);
    expect((await list())[0]).to.include({ sequence: 7 });
  });

  it('finds events by actor, action, resource, result and time', async () => {
    const start = Date.now();
    await trail.record(facts);
    await trail.record({ ...facts, actor: { ...facts.actor, id: 'u9' } });
    await trail.record({ ...facts, action: 'AuthService/DeleteUser', result: 'NOT_FOUND' });
    await trail.record({ ...facts, resource: { kind: 'user', id: 'u7' } });
    const sequences = async (filters: Partial<AuditFilters>) =>
      (await list('acme', filters)).map(({ sequence }) => sequence);
    expect(await sequences({})).to.deep.equal([4, 3, 2, 1]);
    expect(await sequences({ actor: 'u9' })).to.deep.equal([2]);
    expect(await sequences({ action: 'AuthService/DeleteUser' })).to.deep.equal([3]);
    expect(await sequences({ result: 'NOT_FOUND' })).to.deep.equal([3]);
    expect(await sequences({ resourceId: 'u7', actor: 'u1' })).to.deep.equal([4]);
    expect(await sequences({ start: new Date(start), end: new Date(Date.now() + 1000) })).to.have.length(4);
    expect(await sequences({ end: new Date(start) })).to.deep.equal([]);
  });

  it('acknowledges an event only when it is durable, and writes those that waited for the database', async () => {
    const proxy = await TcpProxy.before(test.url);
    const database = new Database(proxy.through(test.url), logger, { statementMilliseconds: 1000 });
    const far = new AuditTrail({ database, clock: systemClock, logger, metrics: createMetrics() });
    await far.record(facts);
    proxy.cut();
    let isDone = false;
    const waiting = far.record({ ...facts, requestId: 'r2' }).then(() => (isDone = true));
    far.note({ ...facts, result: 'PERMISSION_DENIED', requestId: 'r3' });
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(isDone).to.equal(false);
    proxy.restore();
    await waiting;
    await eventually(async () => (await list()).length === 3);
    expect((await list()).map(({ requestId }) => requestId)).to.have.members(['r1', 'r2', 'r3']);
    await far.close();
    await database.close();
    await proxy.close();
  });

  it('has a refused attempt that is repeated all the time once a minute', async () => {
    let now = 0;
    const metrics = createMetrics();
    const often = new AuditTrail({ database: test.database, clock: { now: () => now }, logger, metrics });
    const refused = { ...facts, action: 'AuthService/ListUsers', result: 'PERMISSION_DENIED' };
    for (let attempt = 0; attempt < 50; attempt += 1) often.noteOnce(refused);
    for (const other of [
      { actor: { ...facts.actor, id: 'another' } },
      { action: 'AuthService/GetUser' },
      { resource: { kind: 'user', id: 'another' } },
      { tenantId: 'other' },
    ]) {
      often.noteOnce({ ...refused, ...other });
    }
    now = 60_000;
    often.noteOnce(refused);
    await often.close();
    expect(await list()).to.have.length(5);
    expect(await list('other')).to.have.length(1);
  });

  it('limits how many refused attempts of a log are recorded in a minute', async () => {
    const metrics = createMetrics();
    let now = 0;
    const flooded = new AuditTrail({ database: test.database, clock: { now: () => now }, logger, metrics });
    for (let attempt = 0; attempt < 1500; attempt += 1) flooded.note({ ...facts, result: 'PERMISSION_DENIED' });
    flooded.note({ ...facts, tenantId: 'other', result: 'PERMISSION_DENIED' });
    now = 60_000;
    flooded.note({ ...facts, result: 'PERMISSION_DENIED' });
    await flooded.close();
    expect(await list()).to.have.length(1001);
    expect(await list('other')).to.have.length(1);
    const dropped = await metrics.getSingleMetric('kellet_audit_dropped_total')!.get();
    expect(dropped.values[0]!.value).to.equal(500);
  });

  it('limits refused reads more, and apart from other refused attempts', async () => {
    const metrics = createMetrics();
    const flooded = new AuditTrail({ database: test.database, clock: { now: () => 0 }, logger, metrics });
    const read = { ...facts, action: 'AuthService/GetUser', result: 'PERMISSION_DENIED' };
    const readOf = (id: string) => flooded.noteOnce({ ...read, resource: { kind: 'user', id } });
    for (let attempt = 0; attempt < 150; attempt += 1) readOf(String(attempt));
    for (let attempt = 0; attempt < 1000; attempt += 1) flooded.note({ ...facts, result: 'PERMISSION_DENIED' });
    await flooded.close();
    expect(await list('acme', { action: read.action })).to.have.length(100);
    expect(await list('acme', { action: facts.action })).to.have.length(1000);
    const dropped = await metrics.getSingleMetric('kellet_audit_dropped_total')!.get();
    expect(dropped.values[0]!.value).to.equal(50);
  });

  it('limits how many refused attempts of an actor are recorded in a day, of strangers those of an action', async () => {
    const metrics = createMetrics();
    let now = 0;
    const flooded = new AuditTrail({ database: test.database, clock: { now: () => now }, logger, metrics });
    const refused = { ...facts, result: 'PERMISSION_DENIED' };
    const stranger = { ...refused, actor: { kind: 'public', id: '', name: '' }, action: 'auth.login_failed' };
    for (let minute = 0; minute < 12; minute += 1) {
      now = minute * 60_000;
      for (let attempt = 0; attempt < 400; attempt += 1) flooded.note(refused);
      for (let attempt = 0; attempt < 400; attempt += 1) flooded.note({ ...stranger, requestId: String(attempt) });
      flooded.note({ ...refused, actor: { ...facts.actor, id: 'another' } });
      flooded.noteOnce({ ...refused, action: 'AuthService/GetUser', resource: { kind: 'user', id: String(minute) } });
    }
    flooded.note({ ...stranger, action: 'ProvisioningService/ClaimDevice' });
    await flooded.close();
    // A thousand, and what a day's allowance gives in eleven minutes.
    expect(await list('acme', { action: facts.action, actor: 'u1' })).to.have.length(1038);
    expect(await list('acme', { action: 'AuthService/GetUser' })).to.have.length(12);
    expect(await list('acme', { action: stranger.action })).to.have.length(1038);
    expect(await list('acme', { actor: 'another' })).to.have.length(12);
    expect(await list('acme', { action: 'ProvisioningService/ClaimDevice' })).to.have.length(1);
  });

  it('records those of others although an actor goes on whose attempts are not recorded any more', async () => {
    let now = 0;
    const flooded = new AuditTrail({
      database: test.database,
      clock: { now: () => now },
      logger,
      metrics: createMetrics(),
    });
    const refused = { ...facts, result: 'PERMISSION_DENIED' };
    const stranger = {
      ...refused,
      actor: { kind: 'public', id: '', name: '' },
      action: 'ProvisioningService/ClaimDevice',
    };
    for (let minute = 0; minute < 4; minute += 1) {
      now = minute * 60_000;
      for (let attempt = 0; attempt < 2000; attempt += 1) flooded.note(stranger);
      flooded.note({ ...refused, requestId: String(minute) });
    }
    await flooded.close();
    // All but the one of the minute in which those of the stranger are recorded.
    expect((await list('acme', { actor: 'u1' })).map(({ requestId }) => requestId).sort()).to.deep.equal([
      '1',
      '2',
      '3',
    ]);
  });

  it('takes refused reads of long ids that differ late for repetitions', async () => {
    const read = { ...facts, action: 'AuthService/GetUser', result: 'PERMISSION_DENIED' };
    for (const id of ['x'.repeat(64), `${'x'.repeat(64)}1`, `${'x'.repeat(64)}2`, `${'x'.repeat(63)}3`])
      trail.noteOnce({ ...read, resource: { kind: 'user', id } });
    await trail.close();
    expect(await list()).to.have.length(2);
  });
});

describe('the audit trail of a tenant that uses all its connections', () => {
  it('records the events of others at once, although one of its calls has begun to write', async () => {
    const test = await createTestDatabase();
    const database = new Database(test.url, createLogger('silent'), { maximumConnections: 4 });
    const parts = { database, clock: systemClock, logger: createLogger('silent'), metrics: createMetrics() };
    const trail = new AuditTrail(parts);
    const gate = Promise.withResolvers<void>();
    const busy = Array.from({ length: 20 }, () => database.tenant('busy', () => gate.promise));
    const asBusy = <T>(work: () => Promise<T>) =>
      inTrace(
        beginTrace('call', 'SERVER', undefined, () => ({})),
        () => {
          setTraceOwner('busy');
          return work();
        },
      );
    await Promise.all([asBusy(() => trail.record(facts)), trail.record({ ...facts, tenantId: 'other' })]);
    gate.resolve();
    await Promise.all(busy);
    await trail.close();
    await database.close();
    await test.drop();
  });
});
