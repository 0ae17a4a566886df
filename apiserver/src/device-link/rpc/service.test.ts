// Commands to devices through both public ports, with a real database.
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata } from '@grpc/grpc-js';
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import {
  DeviceLinkService,
  ListPendingRpcsRequestSchema,
  type ListPendingRpcsResponse,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import type { Platform } from '../../config/module.ts';
import { startTestGateway, type TestGateway } from '../../gateway/testing/test-gateway.ts';
import { systemClock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { Paging } from '../../platform/requests/paging.ts';
import { type Caller, internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { CommandFeed } from '../commands/command-feed.ts';
import { commandSweep, deleteEndedCommands, expireCommands } from '../commands/command-sweep.ts';
import { enqueueCommand } from '../commands/commands.ts';
import { createProfileReader } from '../provisioning/profiles.ts';
import { Delivery, type TakeOptions } from './delivery.ts';
import { createRpc } from './service.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;
const heapUsed = (): number => {
  collectGarbage();
  return process.memoryUsage().heapUsed;
};

const tenantId = 'acme';

describe('commands to devices', () => {
  let test: TestDatabase;
  let server: TestGateway;
  let client: Client;
  let delivery: Delivery;
  let platform: Platform;
  const handlers = new ServiceRegistry();

  before(async () => {
    test = await createTestDatabase();
    const { database } = test;
    await insertTenant(database, tenantId);
    const profiles = createProfileReader(database);
    platform = {
      ...{ database, clock: systemClock, logger: createLogger('silent'), metrics: createMetrics() },
      ...{ config: { commandRetentionDays: 30 }, paging: new Paging(Buffer.alloc(32)) },
    } as Platform;
    const rpc = createRpc(platform, profiles, { seen: () => undefined });
    delivery = new Delivery(database, profiles, systemClock);
    rpc.register(handlers);
    server = await startTestGateway((registry) => rpc.register(registry), { testDatabase: test });
    server.tokens.set('operator', {
      ...{ valid: true, kind: Kind.user, tenantId, userId: newId(), scopes: ['rpc:read', 'rpc:write'] },
      rateLimitPerMinute: 100_000,
    });
    client = new Client(server.grpc, credentials.createInsecure());
  });
  after(async () => {
    client?.close();
    await server?.stop();
    await test.drop();
  });

  let devices = 0;
  async function device(): Promise<string> {
    const deviceId = newId();
    devices += 1;
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'pump', 'pump-' || $3::int)`,
        [tenantId, deviceId, devices],
      ),
    );
    server.tokens.set(deviceId, { valid: true, kind: Kind.device, tenantId, deviceId });
    return deviceId;
  }

  interface Poll {
    /** Number of commands in the response; undefined while it waits. */
    commands: number | undefined;
    readonly leave: () => void;
  }
  function pollByRest(deviceId: string): Poll {
    const leaving = new AbortController();
    const poll: Poll = { commands: undefined, leave: () => leaving.abort() };
    const path = `/api/v1/devices/${deviceId}/rpc/pending?wait_seconds=60`;
    fetch(`${server.rest}${path}`, { headers: { 'x-api-key': deviceId }, signal: leaving.signal })
      .then((response) => response.json() as Promise<{ commands: unknown[] }>)
      .then(
        ({ commands }) => (poll.commands = commands.length),
        () => undefined,
      );
    return poll;
  }
  function pollByGrpc(deviceId: string): Poll {
    const { path, requestSerialize, responseDeserialize } = grpcService(DeviceLinkService)['ListPendingRpcs']!;
    const request = create(ListPendingRpcsRequestSchema, { deviceId, waitSeconds: 60 });
    const metadata = new Metadata();
    metadata.set('x-api-key', deviceId);
    const poll: Poll = { commands: undefined, leave: () => call.cancel() };
    const call = client.makeUnaryRequest(
      path,
      requestSerialize,
      responseDeserialize,
      request,
      metadata,
      {},
      (_, response) => {
        poll.commands = (response as ListPendingRpcsResponse | undefined)?.commands.length;
      },
    );
    return poll;
  }

  it('are awaited by at most four polls of a device, and a new one ends the oldest', async () => {
    const [busy, calm] = [await device(), await device()];
    const other = pollByGrpc(calm);
    const polls: Poll[] = [];
    for (let count = 0; count < 60; count += 1) polls.push((count % 2 === 0 ? pollByRest : pollByGrpc)(busy));
    const waiting = () => polls.filter(({ commands }) => commands === undefined);
    const responded = () => polls.filter(({ commands }) => commands !== undefined);
    await eventually(() => waiting().length === 4);
    // Both ports share the limit: a poll on one ends a poll on the other.
    const last = [pollByGrpc(busy), pollByRest(busy), pollByGrpc(busy), pollByRest(busy)];
    await eventually(() => waiting().length === 0);
    expect(responded().map(({ commands }) => commands)).to.deep.equal(polls.map(() => 0));
    expect([other, ...last].map(({ commands }) => commands)).to.deep.equal(Array(5).fill(undefined));

    const command = { tenantId, deviceId: busy, method: 'reboot', params: {}, persistent: false, expiresInSeconds: 60 };
    await test.database.tenant(tenantId, (tx) => enqueueCommand(tx, command));
    await eventually(() => last.some(({ commands }) => commands === 1));
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(last.filter(({ commands }) => commands === undefined)).to.have.length(3);
    expect(other.commands).to.equal(undefined);
    for (const poll of [other, ...last]) poll.leave();
  });

  it('take little memory while calls wait for their end, however large they are', async () => {
    const deviceId = await device();
    const params = { list: Array<Record<string, never>>(20_000).fill({}) };
    const command = { tenantId, deviceId, method: 'x', params, persistent: true, expiresInSeconds: 60 };
    const { correlationId } = await test.database.tenant(tenantId, (tx) => enqueueCommand(tx, command));
    const leaving = new AbortController();
    const caller: Caller = { ...publicCaller, kind: 'user', tenantId };
    const get = (waitSeconds: number) =>
      handlers.unary(
        DeviceLinkService.method.getRpc,
        create(DeviceLinkService.method.getRpc.input, { correlationId, waitSeconds }),
        internalContext(caller, { signal: leaving.signal }),
      );
    await get(0);
    const before = heapUsed();
    const calls = Array.from({ length: 40 }, () => get(60));
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect((heapUsed() - before) / calls.length).to.be.below(200_000);
    leaving.abort();
    for (const { params: shown } of await Promise.all(calls))
      expect(shown).to.have.nested.property('list.length', 20_000);
  });

  it('are read by few calls at a time if they are large', async () => {
    const deviceId = await device();
    let running = 0;
    let most = 0;
    const counted = Object.assign(Object.create(test.database) as Database, {
      read: <T>(tenant: string, work: (tx: Transaction) => Promise<T>) =>
        test.database.read(tenant, async (tx) => {
          const query = async (...[text, values]: Parameters<Transaction['query']>) => {
            const isWhole = text.startsWith('SELECT *');
            if (isWhole) most = Math.max(most, (running += 1));
            return tx.query(text, values).finally(() => isWhole && (running -= 1));
          };
          return work(Object.assign(Object.create(tx) as Transaction, { query }));
        }),
    });
    const registry = new ServiceRegistry();
    const counting = { ...platform, database: counted, metrics: createMetrics() };
    createRpc(counting, createProfileReader(counted), { seen: () => undefined }).register(registry);
    const mostAtOnce = async (items: number): Promise<number> => {
      const params = { list: Array<Record<string, never>>(items).fill({}) };
      const command = { tenantId, deviceId, method: 'x', params, persistent: true, expiresInSeconds: 60 };
      const { correlationId } = await test.database.tenant(tenantId, (tx) => enqueueCommand(tx, command));
      const request = create(DeviceLinkService.method.getRpc.input, { correlationId });
      most = 0;
      const calls = Array.from({ length: 40 }, () =>
        registry.unary(
          DeviceLinkService.method.getRpc,
          request,
          internalContext({ ...publicCaller, kind: 'user', tenantId }),
        ),
      );
      for (const shown of await Promise.all(calls)) expect(shown.params).to.have.nested.property('list.length', items);
      return most;
    };
    expect(await mostAtOnce(100)).to.be.greaterThan(2);
    expect(await mostAtOnce(20_000)).to.equal(2);
  });

  interface CommandRecord {
    correlation_id: string;
    status: string;
    attempts?: number;
    response?: object;
    error?: string;
    sent_at?: string;
    finished_at?: string;
    expires_at: string;
    code?: string;
  }
  async function call<T = CommandRecord>(token: string, path: string, body?: object): Promise<T> {
    const response = await fetch(`${server.rest}/api/v1/devices/${path}`, {
      headers: { 'x-api-key': token, 'content-type': 'application/json' },
      ...(body ? { method: 'POST', body: JSON.stringify(body) } : {}),
    });
    return (await response.json()) as T;
  }
  const send = (deviceId: string, options: object = {}) =>
    call('operator', `${deviceId}/rpc`, { method: 'reboot', persistent: true, ...options });
  const get = (correlationId: string, wait = 0) => call('operator', `rpc/${correlationId}?wait_seconds=${wait}`);
  const list = async (deviceId: string, status = '') =>
    (await call<{ commands: CommandRecord[] }>('operator', `${deviceId}/rpc${status && `?status=${status}`}`)).commands;
  const cancel = (correlationId: string) => call('operator', `rpc/${correlationId}/cancel`, {});
  const poll = async (deviceId: string, wait = 0) =>
    (await call<{ commands: CommandRecord[] }>(deviceId, `${deviceId}/rpc/pending?wait_seconds=${wait}`)).commands;
  const respond = (deviceId: string, correlationId: string, success = true) =>
    call(deviceId, `rpc/${correlationId}/response`, { success, response: { uptime: 1 }, error: success ? '' : 'no' });
  /** Sets columns of a command, to let time pass. */
  const set = (correlationId: string, columns: string) =>
    test.database.system((tx) =>
      tx.query(`UPDATE device_commands SET ${columns} WHERE correlation_id = $1`, [correlationId]),
    );
  const makeDue = (correlationId: string) => set(correlationId, 'not_before = now()');

  describe('are delivered at least once:', () => {
    it('redelivers a command under the same id until the device responds', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      expect(await poll(deviceId)).to.have.length(1);
      expect(await get(id)).to.include({ status: 'sent', attempts: 1 });
      expect(await poll(deviceId)).to.have.length(0);
      await makeDue(id);
      const [again] = await poll(deviceId);
      expect(again).to.include({ correlation_id: id, attempts: 2, status: 'sent' });
      expect(await respond(deviceId, id)).to.include({ status: 'successful', attempts: 2 });
      await makeDue(id);
      expect(await poll(deviceId)).to.have.length(0);
    });

    it('waits 30 seconds before it redelivers, and then twice as long each time', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      const delays: number[] = [];
      for (let count = 0; count < 7; count += 1) {
        expect(await poll(deviceId)).to.have.length(1);
        const { rows } = await test.database.system((tx) =>
          tx.query<{ delay: number }>(
            `SELECT extract(epoch FROM not_before - sent_at)::int4 AS delay FROM device_commands WHERE correlation_id = $1`,
            [id],
          ),
        );
        delays.push(rows[0]!.delay);
        await makeDue(id);
      }
      expect(delays).to.deep.equal([30, 60, 120, 240, 480, 600, 600]);
    });

    it('completes a waiting poll when a redelivery becomes due', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      await poll(deviceId);
      await set(id, `not_before = now() + interval '700 milliseconds'`);
      const start = Date.now();
      const [again] = await poll(deviceId, 20);
      expect(again).to.include({ correlation_id: id, attempts: 2 });
      expect(Date.now() - start).to.be.within(500, 5000);
    });

    it('redelivers to a new session what was delivered before it, once, and to polls only when it is due', async () => {
      const deviceId = await device();
      const { correlation_id: first } = await send(deviceId);
      const { correlation_id: second } = await send(deviceId);
      expect(await poll(deviceId)).to.have.length(2);
      const { correlation_id: queued } = await send(deviceId);
      const idsOf = async (options?: TakeOptions) =>
        (await delivery.take(tenantId, deviceId, options)).commands.map((command) => [
          command.correlation_id,
          command.attempts,
        ]);
      const { rows } = await test.database.system((tx) => tx.query<{ now: Date }>('SELECT clock_timestamp() AS now'));
      const deliveredBefore = rows[0]!.now;
      expect(await idsOf({ deliveredBefore, limit: 1 })).to.deep.equal([[first, 2]]);
      expect(await idsOf({ deliveredBefore, limit: 1 })).to.deep.equal([[second, 2]]);
      expect(await idsOf({ deliveredBefore })).to.deep.equal([]);
      expect(await idsOf()).to.deep.equal([[queued, 1]]);
      expect(await idsOf()).to.deep.equal([]);
    });

    it('delivers a command to one of many polls at a time', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      for (let attempt = 1; attempt <= 3; attempt += 1) {
        const other = new Delivery(test.database, createProfileReader(test.database), systemClock);
        const taken = await Promise.all(
          Array.from({ length: 40 }, (_, index) => (index % 2 ? delivery : other).take(tenantId, deviceId)),
        );
        const commands = taken.flatMap((each) => [...each.commands]);
        expect(commands.map((command) => command.attempts)).to.deep.equal([attempt]);
        await makeDue(id);
      }
    });

    it('delivers other commands while a device ignores some', async () => {
      const deviceId = await device();
      for (let count = 0; count < 25; count += 1) await send(deviceId);
      expect(await poll(deviceId)).to.have.length(20);
      expect(await poll(deviceId)).to.have.length(5);
      const { correlation_id: last } = await send(deviceId);
      expect((await poll(deviceId)).map((command) => command.correlation_id)).to.deep.equal([last]);
    });

    it('accepts the same response any number of times, also concurrently, and no other', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      await poll(deviceId);
      await makeDue(id);
      await poll(deviceId);
      const responses = await Promise.all(Array.from({ length: 10 }, () => respond(deviceId, id)));
      expect(responses.map(({ status }) => status)).to.deep.equal(Array(10).fill('successful'));
      const refused = { code: 'FAILED_PRECONDITION', message: 'the command has succeeded' };
      expect(await respond(deviceId, id, false)).to.include(refused);
      const other = { success: true, response: { uptime: 2 } };
      expect(await call(deviceId, `rpc/${id}/response`, other)).to.include({
        code: 'FAILED_PRECONDITION',
        message: 'the command has succeeded with another response',
      });
      expect(await get(id)).to.deep.include({ status: 'successful', response: { uptime: 1 } });
    });

    it('accepts one of several concurrent contradicting responses', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      await poll(deviceId);
      const responses = await Promise.all(
        Array.from({ length: 20 }, (_, index) => respond(deviceId, id, index % 2 === 0)),
      );
      const { status } = await get(id);
      const taken = responses.filter((response) => response.code === undefined);
      expect(taken.map((response) => response.status)).to.deep.equal(Array(10).fill(status));
      const refused = responses.filter((response) => response.code !== undefined);
      expect(refused.map(({ code }) => code)).to.deep.equal(Array(10).fill('FAILED_PRECONDITION'));
    });

    it('delivers at most 256 KiB of parameters at once, in order, and a larger command alone', async () => {
      const deviceId = await device();
      const sizes = [60, 60, 60, 60, 60, 300, 1, 1];
      for (const [n, kibibytes] of sizes.entries()) {
        const params = { n, filling: 'x'.repeat(kibibytes * 1024) };
        await test.database.tenant(tenantId, (tx) =>
          enqueueCommand(tx, { tenantId, deviceId, method: 'set', params, persistent: true, expiresInSeconds: 60 }),
        );
      }
      const polls: number[][] = [];
      for (;;) {
        const { commands, nextMilliseconds } = await delivery.take(tenantId, deviceId);
        polls.push(commands.map(({ params }) => params['n'] as number));
        if (nextMilliseconds !== 0) break;
      }
      expect(polls).to.deep.equal([[0, 1, 2, 3], [4], [5], [6, 7]]);
    });

    it('queries the database once for a poll that waits in vain', async () => {
      const deviceId = await device();
      const { database } = test;
      const read = database.read.bind(database);
      let reads = 0;
      const counting = new Proxy(database, {
        get: (target, name) =>
          name === 'read'
            ? (...call: Parameters<typeof read>) => {
                reads += 1;
                return read(...call);
              }
            : (Reflect.get(target, name) as unknown),
      });
      const idle = new Delivery(counting, createProfileReader(database), systemClock);
      const feed = new CommandFeed({ listen: () => undefined });
      const taken = await feed.until({
        ...{ key: `${tenantId}/${deviceId}`, milliseconds: 1500, signal: new AbortController().signal },
        look: () => idle.take(tenantId, deviceId),
        found: ({ commands }) => commands.length > 0,
        next: ({ nextMilliseconds }) => nextMilliseconds,
      });
      expect(taken.commands).to.have.length(0);
      expect(reads).to.equal(1);
      // Concurrent polls share their queries.
      const others = Array.from({ length: 100 }, () => newId());
      reads = 0;
      await Promise.all(others.map((other) => idle.take(tenantId, other)));
      expect(reads).to.equal(1);
    });
  });

  describe('can be cancelled:', () => {
    it('a queued one is never delivered', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      const cancelled = await cancel(id);
      expect(cancelled).to.include({ status: 'cancelled' });
      expect(cancelled.finished_at).to.be.a('string');
      expect(await poll(deviceId)).to.have.length(0);
      expect(await cancel(id), 'a repeat changes nothing').to.deep.equal(cancelled);
    });

    it('not by a caller who only reads those of its device, which is told so; for others it does not exist', async () => {
      const { correlation_id: id } = await send(await device());
      const everywhere = [{ scopes: ['rpc:write'], deviceGroupIds: [newId()] }];
      const part = [{ scopes: ['rpc:read', 'rpc:write'], deviceGroupIds: [newId()] }];
      const common = { valid: true, kind: Kind.user, tenantId, userId: newId() };
      server.tokens.set('reader', { ...common, scopes: ['rpc:read'], limitedGrants: everywhere });
      server.tokens.set('elsewhere', { ...common, scopes: [], limitedGrants: part });
      const by = async (token: string) => (await call(token, `rpc/${id}/cancel`, {})).code;
      expect(await by('reader')).to.equal('PERMISSION_DENIED');
      expect(await by('elsewhere')).to.equal('NOT_FOUND');
      expect(await get(id)).to.include({ status: 'queued' });
    });

    it('a sent one is not redelivered, and accepts no response', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId);
      await poll(deviceId);
      expect(await cancel(id)).to.include({ status: 'cancelled', attempts: 1 });
      await makeDue(id);
      expect(await poll(deviceId)).to.have.length(0);
      expect(await respond(deviceId, id)).to.include({ code: 'FAILED_PRECONDITION' });
      expect(await get(id)).to.include({ status: 'cancelled' });
    });

    it('and callers waiting for their end return', async () => {
      const { correlation_id: id } = await send(await device());
      const start = Date.now();
      // Also under an id that is spelt in capitals.
      const waiting = Promise.all([get(id, 30), get(id.toUpperCase(), 30)]);
      await new Promise((resolve) => setTimeout(resolve, 200));
      await cancel(id);
      for (const ended of await waiting) expect(ended).to.include({ status: 'cancelled' });
      expect(Date.now() - start).to.be.lessThan(5000);
    });

    it('unless they have finished, expired, belong to a rollout or do not exist', async () => {
      const deviceId = await device();
      const { correlation_id: done } = await send(deviceId);
      const { correlation_id: failed } = await send(deviceId);
      const { correlation_id: late } = await send(deviceId);
      const { correlation_id: update } = await send(deviceId);
      await respond(deviceId, done);
      await respond(deviceId, failed, false);
      await set(late, `expires_at = now()`);
      await set(update, `status = 'scheduled', rollout_id = '${newId()}'`);
      for (const id of [done, failed, late, update]) {
        const before = await get(id);
        expect(await cancel(id)).to.include({ code: 'FAILED_PRECONDITION' });
        expect(await get(id)).to.deep.equal(before);
      }
      expect(await cancel(newId())).to.include({ code: 'NOT_FOUND' });
    });
  });

  it('are at most a thousand that a device has not ended, however many are sent at once', async () => {
    const [deviceId, other] = [await device(), await device()];
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO device_commands (tenant_id, correlation_id, device_id, method, status, persistent, expires_at)
         SELECT $1, gen_random_uuid(), $2, 'reboot', CASE WHEN n % 2 = 0 THEN 'sent' ELSE 'queued' END, true,
           now() + interval '1 day' FROM generate_series(1, 997) AS n`,
        [tenantId, deviceId],
      ),
    );
    const first = await send(deviceId, { idempotency_key: 'first' });
    const results = await Promise.all(Array.from({ length: 10 }, () => send(deviceId)));
    expect(results.filter(({ code }) => code === 'RESOURCE_EXHAUSTED')).to.have.length(8);
    expect(results.filter(({ status }) => status === 'queued')).to.have.length(2);
    // A repetition is none more.
    expect(await send(deviceId, { idempotency_key: 'first' })).to.deep.equal(first);
    expect(await send(other)).to.include({ status: 'queued' });
    await cancel(first.correlation_id);
    expect(await send(deviceId)).to.include({ status: 'queued' });
    expect(await send(deviceId)).to.include({
      code: 'RESOURCE_EXHAUSTED',
      message: 'a device has at most 1000 commands that have not ended',
    });
  });

  describe('have idempotency keys:', () => {
    it('the same request with the same key returns the same command', async () => {
      const deviceId = await device();
      const options = { idempotency_key: 'restart-1', params: { b: [1.0, -0, { x: null }], a: 'x' } };
      const first = await send(deviceId, options);
      const turned = { ...options, params: { a: 'x', b: [1, 0, { x: null }] }, expires_in_seconds: 604_800 };
      expect(await send(deviceId, turned)).to.deep.equal(first);
      expect(await poll(deviceId)).to.have.length(1);
      await respond(deviceId, first.correlation_id);
      expect(await send(deviceId, options)).to.include({
        correlation_id: first.correlation_id,
        status: 'successful',
      });
      expect(await list(deviceId)).to.have.length(1);
    });

    for (const [what, other] of [
      ['method', { method: 'shutdown' }],
      ['params', { params: { level: 2 } }],
      ['params, by a field', { params: { level: 1, now: true } }],
      ['persistent', { persistent: false, expires_in_seconds: 604_800 }],
      ['expires_in_seconds', { expires_in_seconds: 61 }],
    ] as const) {
      it(`the same key for another command is refused: ${what}`, async () => {
        const deviceId = await device();
        const options = { idempotency_key: 'once', params: { level: 1 } };
        const first = await send(deviceId, options);
        expect(await send(deviceId, { ...options, ...other })).to.deep.include({
          code: 'FAILED_PRECONDITION',
          message: 'the idempotency_key was used for another command',
        });
        expect((await list(deviceId)).map((command) => command.correlation_id)).to.deep.equal([first.correlation_id]);
      });
    }

    it('also when the command had to wait for the row of its device', async () => {
      const deviceId = await device();
      const options = { idempotency_key: 'waited', expires_in_seconds: 60 };
      const [first] = await Promise.all([
        send(deviceId, options),
        test.database.system((tx) =>
          tx.query(`SELECT pg_sleep(0.2) FROM devices WHERE device_id = $1 FOR UPDATE`, [deviceId]),
        ),
      ]);
      expect(first).to.include({ method: 'reboot', status: 'queued' });
      expect(await send(deviceId, options)).to.deep.equal(first);
    });

    it('also with concurrent requests', async () => {
      const deviceId = await device();
      const sent = await Promise.all(Array.from({ length: 20 }, () => send(deviceId, { idempotency_key: 'once' })));
      expect(new Set(sent.map((command) => command.correlation_id)).size).to.equal(1);
      expect(await list(deviceId)).to.have.length(1);
    });

    it('another key, another device and no key create other commands', async () => {
      const [one, two] = [await device(), await device()];
      const sent = [
        await send(one, { idempotency_key: 'a' }),
        await send(one, { idempotency_key: 'b' }),
        await send(two, { idempotency_key: 'a' }),
        await send(one),
        await send(one),
      ];
      expect(new Set(sent.map((command) => command.correlation_id)).size).to.equal(5);
    });
  });

  describe('expire:', () => {
    it('after a minute, persistent ones after a week, or when the sender specifies', async () => {
      const deviceId = await device();
      const lifetimes: number[] = [];
      for (const options of [{ persistent: false }, { persistent: true }, { expires_in_seconds: 5 }]) {
        const { expires_at: end } = await send(deviceId, options);
        lifetimes.push(Math.round((Date.parse(end) - Date.now()) / 1000));
      }
      expect(lifetimes[0]).to.be.closeTo(60, 5);
      expect(lifetimes[1]).to.be.closeTo(7 * 24 * 3600, 5);
      expect(lifetimes[2]).to.be.closeTo(5, 3);
    });

    for (const persistent of [true, false]) {
      it(`a ${persistent ? 'persistent' : 'transient'} one is shown as expired before the sweep and after it`, async () => {
        const deviceId = await device();
        const { correlation_id: queued } = await send(deviceId, { persistent });
        const { correlation_id: sent } = await send(deviceId, { persistent });
        await set(queued, `not_before = 'infinity'`);
        await poll(deviceId);
        await set(queued, `not_before = now()`);
        await set(sent, `not_before = now()`);
        for (const id of [queued, sent]) await set(id, `expires_at = now()`);
        expect(await poll(deviceId)).to.have.length(0);
        const before = await list(deviceId);
        expect(before.map(({ status }) => status)).to.deep.equal(['expired', 'expired']);
        expect(before.map(({ attempts = 0 }) => attempts)).to.deep.equal([0, 1]);
        for (const record of before) expect(record.finished_at).to.equal(record.expires_at);
        expect(await respond(deviceId, sent)).to.include({ code: 'FAILED_PRECONDITION' });
        expect(await get(sent)).to.deep.equal(before[1]);
        await expireCommands(test.database);
        expect(await list(deviceId)).to.deep.equal(before);
        expect(await list(deviceId, 'expired')).to.deep.equal(before);
        expect(await list(deviceId, 'sent')).to.have.length(0);
        expect(await get(sent)).to.deep.equal(before[1]);
        expect(await respond(deviceId, sent)).to.include({ code: 'FAILED_PRECONDITION' });
      });
    }

    it('and callers waiting for their end return at that moment, without a sweep', async () => {
      const start = Date.now();
      const { correlation_id: id } = await send(await device(), { persistent: false, expires_in_seconds: 1 });
      expect(await get(id, 30)).to.include({ status: 'expired' });
      expect(Date.now() - start).to.be.within(900, 5000);
    });
  });

  describe('are swept:', () => {
    const count = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ status: string; count: number }>(
          `SELECT status, count(*)::int4 AS count FROM device_commands GROUP BY status`,
        ),
      );
      return Object.fromEntries(rows.map((row) => [row.status, row.count]));
    };
    beforeEach(async () => {
      await test.database.system((tx) => tx.query('DELETE FROM device_commands'));
    });
    const fill = (rows: number, columns: Record<string, string>) =>
      test.database.system((tx) =>
        tx.query(
          `INSERT INTO device_commands (tenant_id, correlation_id, device_id, method, persistent, expires_at,
             ${Object.keys(columns).join(', ')})
           SELECT '${tenantId}', gen_random_uuid(), gen_random_uuid(), 'reboot', true, now() - interval '1 hour',
             ${Object.values(columns).join(', ')} FROM generate_series(1, ${rows})`,
        ),
      );

    it('expires overdue commands in batches shared by several processes', async () => {
      await fill(30, { status: `'queued'` });
      await fill(20, { status: `'sent'` });
      await fill(10, { status: `'cancelled'`, finished_at: 'now()' });
      const { correlation_id: open } = await send(await device());
      const counts = await Promise.all(Array.from({ length: 5 }, () => expireCommands(test.database, 8)));
      expect(counts).to.deep.equal([8, 8, 8, 8, 8]);
      expect(await expireCommands(test.database, 8)).to.equal(8);
      expect(await expireCommands(test.database, 8)).to.equal(2);
      expect(await expireCommands(test.database, 8)).to.equal(0);
      expect(await count()).to.deep.equal({ expired: 50, cancelled: 10, queued: 1 });
      expect(await get(open)).to.include({ status: 'queued' });
    });

    it('deletes only commands that ended before the retention period', async () => {
      await fill(20, { status: `'successful'`, finished_at: `now() - interval '31 days'` });
      await fill(5, { status: `'failure'`, finished_at: `now() - interval '29 days'` });
      await fill(5, { status: `'sent'`, created_at: `now() - interval '90 days'` });
      const counts = await Promise.all([1, 2].map(() => deleteEndedCommands(test.database, 30, 8)));
      expect(counts).to.deep.equal([8, 8]);
      expect(await deleteEndedCommands(test.database, 30, 8)).to.equal(4);
      expect(await count()).to.deep.equal({ failure: 5, sent: 5 });
      // The end of a command that is swept late is its expiry.
      await expireCommands(test.database);
      expect(await deleteEndedCommands(test.database, 30)).to.equal(0);
    });

    it('deletes a key with its command', async () => {
      const deviceId = await device();
      const { correlation_id: id } = await send(deviceId, { idempotency_key: 'again' });
      await respond(deviceId, id);
      await set(id, `finished_at = now() - interval '31 days'`);
      expect(await deleteEndedCommands(test.database, 30)).to.equal(1);
      expect(await get(id)).to.include({ code: 'NOT_FOUND' });
      expect((await send(deviceId, { idempotency_key: 'again' })).correlation_id).not.to.equal(id);
    });

    it('without a gap for callers paging through them', async () => {
      const deviceId = await device();
      const sent: string[] = [];
      for (let count = 0; count < 6; count += 1) sent.push((await send(deviceId)).correlation_id);
      type Page = { commands: CommandRecord[]; next_page_token?: string };
      const first = await call<Page>('operator', `${deviceId}/rpc?page_size=2`);
      expect(first.commands.map((command) => command.correlation_id)).to.deep.equal(sent.slice(0, 2));
      for (const id of sent.slice(0, 2)) {
        await set(id, `status = 'successful', finished_at = now() - interval '31 days'`);
      }
      expect(await deleteEndedCommands(test.database, 30)).to.equal(2);
      const path = `${deviceId}/rpc?page_size=10&page_token=${first.next_page_token}`;
      const rest = await call<Page>('operator', path);
      expect(rest.commands.map((command) => command.correlation_id)).to.deep.equal(sent.slice(2));
    });

    it('by indexes, at a cost independent of their number', async () => {
      await fill(20_000, { status: `'successful'`, finished_at: 'now()' });
      await test.database.pool.query('ANALYZE device_commands');
      const plan = async (where: string, order: string) => {
        const { rows } = await test.database.pool.query<{ 'QUERY PLAN': string }>(
          `EXPLAIN SELECT correlation_id FROM device_commands WHERE ${where} ORDER BY ${order} LIMIT 500 FOR UPDATE SKIP LOCKED`,
        );
        return rows.map((row) => row['QUERY PLAN']).join('\n');
      };
      expect(await plan(`status IN ('queued', 'scheduled', 'sent') AND expires_at <= now()`, 'expires_at')).to.include(
        'device_commands_by_expiry',
      );
      expect(await plan(`finished_at < now() - 30 * interval '1 day'`, 'finished_at')).to.include(
        'device_commands_by_end',
      );
    });

    it('by a running process until it stops', async () => {
      const metrics = createMetrics();
      const sweep = commandSweep({
        ...{ database: test.database, logger: createLogger('silent'), metrics },
        config: { commandRetentionDays: 30 },
      } as Platform);
      await fill(1200, { status: `'queued'` });
      await fill(700, { status: `'successful'`, finished_at: `now() - interval '40 days'` });
      sweep.start();
      await eventually(async () => (await count())['successful'] === undefined);
      await sweep.stop();
      expect(await count()).to.deep.equal({ expired: 1200 });
      const text = await metrics.getSingleMetricAsString('kellet_commands_swept_total');
      expect(text).to.include('{what="expired"} 1200').and.to.include('{what="deleted"} 700');
    });
  });
});
