// Webhooks against a real database and real servers.
import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { WebhookDelivery_Status as Status, WebhookService } from '@kellet/proto/es/kellet/v1/webhook_pb';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import type { ServiceModule } from '../config/module.ts';
import { sleep } from '../platform/clock.ts';
import { enqueue, enqueueAll } from '../platform/events/outbox.ts';
import {
  alarmSubject,
  attributesSubject,
  auditSubject,
  provisionedSubject,
  rolloutSubject,
  statusSubject,
} from '../platform/events/subjects.ts';
import { newId } from '../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { allScopes } from '../platform/scopes.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { outcomeOf } from '../platform/testing/refusals.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { toldByEvents } from '../platform/visibility.ts';
import { createWebhooks } from './service.ts';
import { boundDeliveries, forgetOldDeliveries, webhooksToBound } from './webhook-store.ts';

const { method } = WebhookService;

/** A server that records what it gets and responds with a status, which a test changes. */
class Receiver {
  status = 204;
  /** Holds responses back while set. */
  hold: Promise<void> | undefined;
  delayMilliseconds = 0;
  readonly received: { body: string; signature: string; type: string }[] = [];
  private readonly server: Server;

  constructor() {
    this.server = createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (part: string) => (body += part));
      request.on('end', () => {
        const header = (name: string) => String(request.headers[name]);
        this.received.push({ body, signature: header('x-kellet-signature'), type: header('content-type') });
        void Promise.resolve(this.hold ?? sleep(this.delayMilliseconds)).then(() =>
          response.writeHead(this.status).end('thanks'),
        );
      });
    });
  }

  async start(): Promise<this> {
    this.server.listen(0, '127.0.0.1');
    await once(this.server, 'listening');
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/hook`;
  }

  get events(): { id: string; type: string; subject: string }[] {
    return this.received.map(({ body }) => JSON.parse(body) as { id: string; type: string; subject: string });
  }

  async stop(): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, 'close');
  }
}

describe('webhooks', function () {
  this.timeout(30_000);
  let test: TestDatabase;
  let service: ServiceModule;
  const clock = new MovableClock();
  const registry = new ServiceRegistry();
  const receivers: Receiver[] = [];

  before(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other', 'ota']) await insertTenant(test.database, tenant);
    service = createWebhooks(testPlatform(test.database, clock, { KELLET_WEBHOOK_HOSTS: '127.0.0.1' }));
    service.register(registry);
    await service.start?.();
  });
  after(async () => {
    await service.stop?.();
    await Promise.all(receivers.map((receiver) => receiver.stop()));
    await test.drop();
  });

  const call = <M extends (typeof method)[keyof typeof method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId = 'acme',
    scopes = allScopes,
  ) =>
    registry.unary(
      of,
      create(of.input, request) as MessageShape<M['input']>,
      internalContext({ ...publicCaller, kind: 'kubernetes', tenantId, scopes: new Set(scopes) }),
    );
  const receiver = async (): Promise<Receiver> => {
    const started = await new Receiver().start();
    receivers.push(started);
    return started;
  };
  const hook = async (events: string[], tenantId = 'acme') => {
    const at = await receiver();
    const { webhookId } = await call(method.createWebhook, { url: at.url, secret: 'shared', events }, tenantId);
    return { at, webhookId };
  };
  const emit = (subject: string, tenantId = 'acme', resource = newId()) =>
    test.database.tenant(tenantId, (tx) => enqueue(tx, { tenantId, subject, resource, data: { n: 1 } }, clock));
  const deliveriesOf = async (webhookId: string) =>
    (await call(method.listWebhookDeliveries, { webhookId })).deliveries;
  /** Makes the next attempt due now. */
  const hurry = (webhookId: string) =>
    test.database.system((tx) =>
      tx.query(`UPDATE webhook_deliveries SET next_at = now() WHERE webhook_id = $1 AND status = 'pending'`, [
        webhookId,
      ]),
    );

  /** Returns the bytes that count against the limit. */
  const keptBytes = async (webhookId: string): Promise<number> => {
    const { rows } = await test.database.systemRead((tx) =>
      tx.query<{ bytes: number }>(`SELECT kept_sum('acme', 'webhook_bytes', $1)::int4 AS bytes`, [webhookId]),
    );
    return rows[0]!.bytes;
  };
  const actualOf = async (webhookId: string): Promise<{ kept: number; bytes: number }> => {
    const { rows } = await test.database.systemRead((tx) =>
      tx.query<{ kept: number; bytes: number }>(
        `SELECT count(*)::int4 AS kept, sum(octet_length(event) + 300)::int4 AS bytes
         FROM webhook_deliveries WHERE tenant_id = 'acme' AND webhook_id = $1`,
        [webhookId],
      ),
    );
    return rows[0]!;
  };

  const emitMegabyte = (tenantId = 'acme') =>
    test.database.tenant(tenantId, (tx) => {
      const data = { text: 'x'.repeat(1_000_000) };
      return enqueue(tx, { tenantId, subject: attributesSubject(tenantId, 'd1'), resource: newId(), data }, clock);
    });

  it('wait while their tenant is suspended, and get nothing once it is deleted', async () => {
    await insertTenant(test.database, 'ending');
    const { at } = await hook(['*'], 'ending');
    const neighbour = await hook(['alarm.raised'], 'other');
    const mark = (column: 'suspended_at' | 'deleted_at', value: 'now()' | 'NULL') =>
      test.database.system((tx) => tx.query(`UPDATE tenants SET ${column} = ${value} WHERE tenant_id = 'ending'`));
    /** Emits an event of each tenant; that of the other one arrives after all that were due. */
    const emitBoth = async () => {
      const before = neighbour.at.received.length;
      await emit(alarmSubject('raised', 'ending', 'a1'), 'ending');
      await emit(alarmSubject('raised', 'other', 'a1'), 'other');
      await eventually(() => neighbour.at.received.length > before);
    };
    await mark('suspended_at', 'now()');
    await emitBoth();
    expect(at.received).to.have.length(0);
    await mark('suspended_at', 'NULL');
    await eventually(() => at.received.length === 1);
    await mark('deleted_at', 'now()');
    await emitBoth();
    await emitBoth();
    expect(at.received).to.have.length(1);
  });

  it('are twenty of a tenant, however many are created at once', async () => {
    await insertTenant(test.database, 'many');
    const make = () =>
      outcomeOf(call(method.createWebhook, { url: 'http://127.0.0.1:9/', secret: 's', events: ['*'] }, 'many'));
    const outcomes = await Promise.all(Array.from({ length: 40 }, make));
    expect(outcomes.filter((outcome) => outcome === 'OK')).to.have.length(20);
    expect(outcomes.filter((outcome) => outcome === 'RESOURCE_EXHAUSTED')).to.have.length(20);
  });

  it('get the events that they name, signed, as CloudEvents', async () => {
    const { at, webhookId } = await hook(['alarm.raised', 'device.provisioned']);
    await emit(alarmSubject('raised', 'acme', 'a1'), 'acme', 'a1');
    await emit(alarmSubject('cleared', 'acme', 'a1'));
    await emit(statusSubject('acme', 'd1'));
    await emit(provisionedSubject);
    await emit(alarmSubject('raised', 'other', 'a2'), 'other');
    await eventually(() => at.received.length === 2);
    expect(at.events.map(({ type }) => type)).to.have.members([
      alarmSubject('raised', 'acme', 'a1'),
      provisionedSubject,
    ]);
    for (const { body, signature, type } of at.received) {
      expect(signature).to.equal(`sha256=${createHmac('sha256', 'shared').update(body).digest('hex')}`);
      expect(type).to.equal('application/cloudevents+json');
    }
    await eventually(async () => (await deliveriesOf(webhookId)).every(({ status }) => status === Status.delivered));
    const [latest, first] = await deliveriesOf(webhookId);
    expect(latest).to.include({ subject: 'device.provisioned', attempts: 1, lastStatus: 204 });
    expect(first).to.include({
      subject: 'alarm.raised',
      eventId: at.events.find(({ subject }) => subject === 'a1')!.id,
    });
    expect(latest!.nextAt).to.equal(undefined);
  });

  it('get events of the audit log only from callers who may read it', async () => {
    const url = 'http://127.0.0.1:9/';
    // Not even one who may change the tenant's settings.
    const lesser = ['events:write', 'tenant:write', ...toldByEvents];
    const make = (events: string[], scopes?: readonly string[]) =>
      call(method.createWebhook, { url, secret: 's', events }, 'acme', scopes);
    expect(await outcomeOf(make(['*'], lesser))).to.equal('PERMISSION_DENIED');
    expect(await outcomeOf(make(['alarm.raised', 'audit.event'], lesser))).to.equal('PERMISSION_DENIED');
    const named = await make(['alarm.raised'], lesser);
    const all = await make(['*']);
    const update = (webhookId: string, fields: object, scopes: string[]) =>
      call(method.updateWebhook, { webhookId, ...fields, updateMask: { paths: Object.keys(fields) } }, 'acme', scopes);
    expect(await outcomeOf(update(named.webhookId, { events: ['*'] }, lesser))).to.equal('PERMISSION_DENIED');
    expect(await outcomeOf(update(all.webhookId, { url: `${url}theirs` }, lesser))).to.equal('PERMISSION_DENIED');
    const disabled = { url: `${url}theirs`, enabled: false };
    expect(await outcomeOf(update(all.webhookId, disabled, lesser))).to.equal('PERMISSION_DENIED');
    expect(await outcomeOf(update(all.webhookId, { enabled: false }, lesser))).to.equal('OK');
    for (const { webhookId } of [named, all]) await call(method.deleteWebhook, { webhookId });
  });

  it('are made only by callers who may read all that events tell: nobody is told more by a key that holds less', async () => {
    const request = { url: 'http://127.0.0.1:9/', secret: 's', events: ['alarm.raised'] };
    for (const lacking of toldByEvents) {
      const scopes = ['events:write', ...toldByEvents.filter((scope) => scope !== lacking)];
      expect(await outcomeOf(call(method.createWebhook, request, 'acme', scopes)), lacking).to.equal(
        'PERMISSION_DENIED',
      );
    }
    const { webhookId } = await call(method.createWebhook, request, 'acme', ['events:write', ...toldByEvents]);
    await call(method.deleteWebhook, { webhookId });
  });

  it('are made and given an address only by callers who are not limited to some devices', async () => {
    const { at, webhookId } = await hook(['alarm.raised']);
    const limitedGrants = [{ scopes: ['telemetry:read', 'alarms:read'], deviceGroupIds: [newId()] }];
    const by = { kind: 'kubernetes', tenantId: 'acme', scopes: new Set(['events:write']), limitedGrants } as const;
    const limited = <M extends (typeof method)[keyof typeof method]>(of: M, request: MessageInitShape<M['input']>) =>
      outcomeOf(
        registry.unary(
          of,
          create(of.input, request) as MessageShape<M['input']>,
          internalContext({ ...publicCaller, ...by }),
        ),
      );
    const made = { url: at.url, secret: 's', events: ['alarm.raised'] };
    expect(await limited(method.createWebhook, made)).to.equal('PERMISSION_DENIED');
    const update = { webhookId, url: at.url, updateMask: { paths: ['url'] } };
    expect(await limited(method.updateWebhook, update)).to.equal('PERMISSION_DENIED');
    const disable = { webhookId, enabled: false, updateMask: { paths: ['enabled'] } };
    expect(await limited(method.updateWebhook, disable)).to.equal('OK');
    expect(await limited(method.deleteWebhook, { webhookId })).to.equal('OK');
  });

  it('send none of the audit log that they keep to an address of callers who may not read it', async () => {
    const lesser = ['events:write', ...toldByEvents];
    const { at, webhookId } = await hook(['*']);
    await emit(auditSubject('acme', newId()));
    await eventually(async () => (await deliveriesOf(webhookId))[0]?.status === Status.delivered);
    const theirs = await receiver();
    const divert = (events: string[]) => {
      const fields = { url: theirs.url, events };
      const update = { webhookId, ...fields, updateMask: { paths: Object.keys(fields) } };
      return outcomeOf(call(method.updateWebhook, update, 'acme', lesser));
    };
    const resend = async () => {
      const { deliveryId } = (await deliveriesOf(webhookId))[0]!;
      return outcomeOf(call(method.resendWebhookDelivery, { webhookId, deliveryId }, 'acme', lesser));
    };
    expect(await divert(['alarm.raised'])).to.equal('PERMISSION_DENIED');
    await call(method.updateWebhook, { webhookId, events: ['alarm.raised'], updateMask: { paths: ['events'] } });
    expect(await divert(['alarm.raised'])).to.equal('PERMISSION_DENIED');
    expect(await resend()).to.equal('OK');
    await eventually(() => at.received.length === 2);
    expect(theirs.received).to.have.length(0);
    await test.database.system((tx) =>
      tx.query('DELETE FROM webhook_deliveries WHERE webhook_id = $1 AND subject = $2', [webhookId, 'audit.event']),
    );
    expect(await divert(['alarm.raised'])).to.equal('OK');
    await call(method.deleteWebhook, { webhookId });
  });

  it('are named only by events, also of a tenant whose name occurs in them', async () => {
    const { at } = await hook(['profile.ota.rollout.paused'], 'ota');
    const all = await hook(['*'], 'ota');
    await emit(rolloutSubject('paused', 'ota', 'r1'), 'ota');
    await emit(rolloutSubject('started', 'ota', 'r1'), 'ota');
    await eventually(() => at.received.length === 1 && all.at.received.length === 2);
  });

  it('get nothing of a transaction that is rolled back, and nothing while they are disabled', async () => {
    const { at, webhookId } = await hook(['*']);
    await test.database
      .tenant('acme', async (tx) => {
        const event = { tenantId: 'acme', subject: provisionedSubject, resource: 'r', data: {} };
        await enqueue(tx, event, clock);
        throw new Error('no');
      })
      .catch(() => undefined);
    await call(method.updateWebhook, { webhookId, enabled: false, updateMask: { paths: ['enabled'] } });
    await emit(provisionedSubject);
    await call(method.updateWebhook, { webhookId, enabled: true, updateMask: { paths: ['enabled'] } });
    await emit(statusSubject('acme', 'd1'));
    await eventually(() => at.received.length === 1);
    expect((await deliveriesOf(webhookId)).map(({ subject }) => subject)).to.deep.equal(['device.status']);
  });

  it('are called again after 10 s, doubling, ten times in all; then the event is dead, and can be sent again', async () => {
    const { at, webhookId } = await hook(['device.provisioned']);
    at.status = 500;
    await emit(provisionedSubject);
    for (let attempt = 1; attempt <= 10; attempt += 1) {
      const before = Date.now();
      await eventually(async () => {
        const [delivery] = await deliveriesOf(webhookId);
        const isAttempted = at.received.length === attempt && delivery!.attempts === attempt;
        // The result of the last attempt is stored after the response.
        const status = attempt < 10 ? Status.pending : Status.dead;
        return isAttempted && delivery!.lastStatus === 500 && delivery!.status === status;
      });
      if (attempt === 10) break;
      await eventually(async () => {
        const [{ nextAt } = {}] = await deliveriesOf(webhookId);
        const seconds = Number(nextAt!.seconds) - before / 1000;
        return Math.abs(seconds - 10 * 2 ** (attempt - 1)) < 3;
      });
      await hurry(webhookId);
    }
    expect((await call(method.getWebhook, { webhookId })).lastError).to.equal('the server responded with 500');
    expect(new Set(at.events.map(({ id }) => id)).size).to.equal(1);

    at.status = 200;
    const [dead] = await deliveriesOf(webhookId);
    const { deliveryId } = dead!;
    const resent = await call(method.resendWebhookDelivery, { webhookId, deliveryId });
    expect(resent).to.include({ status: Status.pending, attempts: 0 });
    await eventually(async () => (await deliveriesOf(webhookId))[0]!.status === Status.delivered);
    expect(at.received).to.have.length(11);
    expect((await call(method.getWebhook, { webhookId })).lastError).to.equal('');
    await call(method.resendWebhookDelivery, { webhookId, deliveryId });
    await eventually(() => at.received.length === 12);
  });

  it('do not wait for a slow one, nor for many events of another', async () => {
    const slow = await hook(['*']);
    let release = (): void => undefined;
    slow.at.hold = new Promise((resolve) => (release = resolve));
    const events = Array.from({ length: 300 }, (_, index) => ({
      ...{ tenantId: 'acme', subject: provisionedSubject, resource: `r${index}`, data: {} },
    }));
    await test.database.tenant('acme', (tx) => enqueueAll(tx, events, clock));
    await eventually(() => slow.at.received.length === 2);
    const fast = await hook(['alarm.cleared']);
    await emit(alarmSubject('cleared', 'acme', 'a9'));
    await eventually(() => fast.at.received.length === 1);
    expect(slow.at.received).to.have.length(2);
    release();
    await call(method.deleteWebhook, { webhookId: slow.webhookId });
    expect(await outcomeOf(call(method.listWebhookDeliveries, { webhookId: slow.webhookId }))).to.equal('NOT_FOUND');
  });

  it('do not wait for those of tenants with many slow ones', async () => {
    const slow = await receiver();
    slow.delayMilliseconds = 1000;
    // More than a process calls at once, again and again.
    const tenants = ['slow-1', 'slow-2'];
    for (const tenant of tenants) {
      await insertTenant(test.database, tenant);
      for (let count = 0; count < 20; count += 1) {
        await call(method.createWebhook, { url: slow.url, secret: 'shared', events: ['*'] }, tenant);
      }
      for (let count = 0; count < 20; count += 1) await emit(rolloutSubject('completed', tenant, newId()), tenant);
    }
    const { at } = await hook(['alarm.cleared'], 'other');
    await eventually(() => slow.received.length >= 64);
    await emit(alarmSubject('cleared', 'other', 'a1'), 'other');
    await eventually(() => at.received.length === 1, 20_000);
    expect(slow.received.length).to.be.below(400);
    for (const tenant of tenants) {
      await test.database.system((tx) => tx.query('DELETE FROM webhooks WHERE tenant_id = $1', [tenant]));
    }
  });

  it('get events roughly in order', async () => {
    const { at } = await hook(['device.provisioned']);
    const events = Array.from({ length: 50 }, (_, index) => ({
      ...{ tenantId: 'acme', subject: provisionedSubject, resource: String(index), data: {} },
    }));
    await test.database.tenant('acme', (tx) => enqueueAll(tx, events, clock));
    await eventually(() => at.received.length === 50, 15_000);
    for (const [index, { subject }] of at.events.entries()) {
      expect(Math.abs(Number(subject) - index)).to.be.below(10);
    }
  });

  it('keep finished deliveries for some time and up to some number and size', async () => {
    const { at, webhookId } = await hook(['device.provisioned']);
    for (let index = 0; index < 5; index += 1) await emit(provisionedSubject);
    await eventually(() => at.received.length === 5);
    await eventually(async () => (await deliveriesOf(webhookId)).every(({ status }) => status === Status.delivered));
    const key = { tenant_id: 'acme', webhook_id: webhookId };
    const bound = async (finished: { number: number; bytes: number }) => {
      await test.database.system((tx) => boundDeliveries(tx, key, finished));
      return (await deliveriesOf(webhookId)).length;
    };
    const bytes = await keptBytes(webhookId);
    expect(bytes).to.be.within(5 * 300, 5 * 1000);
    expect(await bound({ number: 5, bytes })).to.equal(5);
    expect(await bound({ number: 5, bytes: bytes - 1 })).to.equal(4);
    expect(await bound({ number: 2, bytes })).to.equal(2);
    expect(await keptBytes(webhookId)).to.equal((bytes / 5) * 2);
    await test.database.system((tx) =>
      tx.query(`UPDATE webhook_deliveries SET finished_at = now() - interval '31 days' WHERE webhook_id = $1`, [
        webhookId,
      ]),
    );
    await test.database.system((tx) => forgetOldDeliveries(tx, 100));
    expect(await deliveriesOf(webhookId)).to.have.length(0);
    expect(await keptBytes(webhookId)).to.equal(0);
  });

  it('are counted only where there may be more finished deliveries than are kept', async () => {
    const { webhookId } = await hook(['device.provisioned']);
    const found = async () =>
      (await test.database.system(webhooksToBound)).find((webhook) => webhook.webhook_id === webhookId);
    const set = (bytes: number, isFull = false) =>
      test.database.system(async (tx) => {
        await tx.query('DELETE FROM kept_sums WHERE owner_id = $1', [webhookId]);
        await tx.query(
          `INSERT INTO kept_sums (tenant_id, kind, owner_id, amount) VALUES ('acme', 'webhook_bytes', $1, $2)`,
          [...[webhookId, bytes]],
        );
        await tx.query('UPDATE webhooks SET is_full = $2 WHERE webhook_id = $1', [webhookId, isFull]);
      });
    // 10,000 deliveries take more.
    await set(3_000_000);
    expect(await found()).to.equal(undefined);
    await set(3_000_001);
    expect(await found()).to.include({ is_full: false, bytes: 3_000_001 });
    await set(1, true);
    expect(await found()).to.include({ is_full: true, bytes: 1 });
    await call(method.deleteWebhook, { webhookId });
  });

  it('drop events beyond the bytes that may wait, whoever adds them at a time, and say so', async () => {
    const { at, webhookId } = await hook(['device.attributes']);
    const other = await hook(['device.attributes']);
    at.status = 500;
    for (let round = 0; round < 16; round += 1) await Promise.all(Array.from({ length: 6 }, () => emitMegabyte()));
    const { kept } = await actualOf(webhookId);
    // 64 MiB, and what transactions at the same time could not see of each other.
    expect(kept).to.be.within(67, 74);
    expect((await call(method.getWebhook, { webhookId })).lastError).to.equal(
      'too many events wait: new ones are dropped',
    );
    expect(await keptBytes(webhookId)).to.equal((await actualOf(webhookId)).bytes);
    // Those of another webhook are delivered meanwhile, and leave room after the sweep.
    await eventually(() => other.at.received.length >= 67, 20_000);

    at.status = 200;
    await eventually(async () => {
      await hurry(webhookId);
      return (await deliveriesOf(webhookId)).every(({ status }) => status === Status.delivered);
    }, 20_000);
    await test.database.system((tx) => boundDeliveries(tx, { tenant_id: 'acme', webhook_id: webhookId }));
    expect((await call(method.getWebhook, { webhookId })).lastError).to.equal('');
    expect((await actualOf(webhookId)).kept).to.equal(8);
    const before = at.received.length;
    await emitMegabyte();
    await eventually(() => at.received.length === before + 1);
    await Promise.all([webhookId, other.webhookId].map((id) => call(method.deleteWebhook, { webhookId: id })));
    const { rows } = await test.database.systemRead((tx) =>
      tx.query(`SELECT FROM kept_sums WHERE owner_id = $1`, [webhookId]),
    );
    expect(rows).to.have.length(0);
  });

  it('leave room for those of others when a tenant has many that take nothing', async () => {
    await insertTenant(test.database, 'full');
    const failing = await Promise.all(Array.from({ length: 10 }, () => hook(['device.attributes'], 'full')));
    for (const { at } of failing) at.status = 500;
    const kept = async (): Promise<number> => {
      const { rows } = await test.database.systemRead((tx) =>
        tx.query<{ kept: number }>(`SELECT count(*)::int4 AS kept FROM webhook_deliveries WHERE tenant_id = 'full'`),
      );
      return rows[0]!.kept;
    };
    for (let count = 0; count < 35; count += 1) await emitMegabyte('full');
    // 256 MiB, although each has less than 64.
    expect(await kept()).to.be.within(260, 280);
    const { at } = await hook(['device.attributes'], 'full');
    for (let count = 0; count < 5; count += 1) await emitMegabyte('full');
    await eventually(() => at.received.length === 5);
    await test.database.system((tx) => tx.query(`DELETE FROM webhooks WHERE tenant_id = 'full'`));
  });

  it('are listed page by page, and are hidden from other tenants', async () => {
    const { webhookId } = await hook(['*'], 'other');
    const seen: string[] = [];
    for (let pageToken = ''; ;) {
      const page = await call(method.listWebhooks, { pageSize: 2, pageToken });
      seen.push(...page.webhooks.map((webhook) => webhook.webhookId));
      pageToken = page.nextPageToken;
      if (pageToken === '') break;
    }
    expect(seen.length).to.be.greaterThan(4);
    expect(seen).not.to.include(webhookId);
    for (const work of [
      () => call(method.getWebhook, { webhookId }),
      () => call(method.updateWebhook, { webhookId, enabled: false, updateMask: { paths: ['enabled'] } }),
      () => call(method.deleteWebhook, { webhookId }),
      () => call(method.listWebhookDeliveries, { webhookId }),
      () => call(method.resendWebhookDelivery, { webhookId, deliveryId: newId() }),
    ]) {
      expect(await outcomeOf(work())).to.equal('NOT_FOUND');
    }
  });

  const refusals: [what: string, request: MessageInitShape<typeof method.createWebhook.input>][] = [
    ['an address that may not be called', { url: 'https://10.0.0.1/', events: ['*'] }],
    ['the metadata service', { url: 'https://169.254.169.254/latest', events: ['*'] }],
    ['http', { url: 'http://example.com/', events: ['*'] }],
    ['no URL', { url: 'nowhere', events: ['*'] }],
    ['a user in the URL', { url: 'https://a:b@example.com/', events: ['*'] }],
    ['no events', { url: 'https://example.com/', events: [] }],
    ['an unknown event', { url: 'https://example.com/', events: ['alarm.raisd'] }],
  ];
  for (const [what, request] of refusals) {
    it(`are refused with ${what}`, async () => {
      expect(await outcomeOf(call(method.createWebhook, request))).to.equal('INVALID_ARGUMENT');
    });
  }
});
