import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { systemClock } from '../clock.ts';
import { createLogger } from '../observability/logger.ts';
import { createMetrics, type Registry } from '../observability/metrics.ts';
import { eventually } from '../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { TestNats } from '../testing/test-nats.ts';
import { TcpProxy } from '../testing/test-tcp-proxy.ts';
import { Broker } from './broker.ts';
import { enqueueAll, nextEvents, type OutboxEvent, OutboxRelay } from './outbox.ts';
import { runEventsCommand } from './outbox-command.ts';
import { streamName } from './subjects.ts';

interface Received {
  readonly subject: string;
  readonly id: string;
  readonly n: number;
}

describe('the outbox', function () {
  this.timeout(60_000);
  let nats: TestNats;
  let test: TestDatabase;
  let broker: Broker;
  let client: NatsConnection;
  let metrics: Registry;
  let lines: string[];
  const stops: (() => Promise<void>)[] = [];

  beforeEach(async () => {
    nats = await TestNats.start(1024);
    test = await createTestDatabase();
    broker = new Broker(nats.url, createLogger('silent'));
    client = await connect({ servers: nats.url, maxReconnectAttempts: -1, reconnectTimeWait: 100 });
    metrics = createMetrics();
    lines = [];
    await eventually(() => broker.isConnected);
  });
  afterEach(async () => {
    for (const stop of stops.splice(0)) await stop();
    await broker.close();
    await client.close();
    await nats.stop();
    await test.drop();
  });

  function startRelay(): OutboxRelay {
    const logger = createLogger('error', {}, { write: (line: string) => void lines.push(line) });
    const relay = new OutboxRelay(test.database, broker, logger, createMetricsOnce());
    stops.push(() => relay.close());
    return relay;
  }
  const createMetricsOnce = () => (stops.length === 0 ? metrics : createMetrics());
  const event = (resource: string, n: number, more: Partial<OutboxEvent> = {}): OutboxEvent => ({
    tenantId: 'acme',
    subject: `device.status.acme.${resource}`,
    resource,
    data: { n },
    ...more,
  });
  const large = { data: { n: -1, filling: 'x'.repeat(2000) } };
  const add = (...events: OutboxEvent[]) => test.database.tenant('acme', (tx) => enqueueAll(tx, events, systemClock));
  const waiting = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ count: number }>('SELECT count(*)::int4 AS count FROM outbox'),
    );
    return rows[0]!.count;
  };
  const drained = (milliseconds = 10_000) => eventually(async () => (await waiting()) === 0, milliseconds);
  /** Returns the contents of the stream. */
  async function stored(): Promise<Received[]> {
    const manager = await client.jetstreamManager();
    const { state } = await manager.streams.info(streamName);
    const received: Received[] = [];
    for (let seq = state.first_seq; seq <= state.last_seq; seq += 1) {
      const message = await manager.streams.getMessage(streamName, { seq });
      const { id, data } = message.json<{ id: string; data: { n: number } }>();
      received.push({ subject: message.subject, id, n: data.n });
    }
    return received;
  }
  const valueOf = async (name: string) => (await metrics.getSingleMetric(name)!.get()).values[0]!.value;

  it('publishes in order per resource, each event once', async () => {
    const resources = Array.from({ length: 20 }, (_, index) => `r${index}`);
    const events = Array.from({ length: 50 }, (_, n) => resources.map((resource) => event(resource, n))).flat();
    for (let first = 0; first < events.length; first += 100) await add(...events.slice(first, first + 100));
    startRelay();
    startRelay();
    await drained();
    const received = await stored();
    expect(received).to.have.length(events.length);
    for (const resource of resources) {
      const own = received.filter(({ subject }) => subject.endsWith(`.${resource}`)).map(({ n }) => n);
      expect(own).to.deep.equal(Array.from({ length: 50 }, (_, n) => n));
    }
  });

  it('is read a mebibyte at a time, or one event that is larger', async () => {
    const filled = (n: number, kibibytes: number) =>
      event('a', n, { data: { n, filling: 'x'.repeat(kibibytes * 1024) } });
    await add(...Array.from({ length: 40 }, (_, n) => filled(n, 64)), filled(40, 3000), filled(41, 1));
    const next = async () => {
      const rows = await test.database.system((tx) => nextEvents(tx));
      await test.database.system((tx) =>
        tx.query('DELETE FROM outbox WHERE position = ANY($1)', [rows.map(({ position }) => position)]),
      );
      return rows.map(({ payload }) => (JSON.parse(payload) as { data: { n: number } }).data.n);
    };
    const rounds = [await next(), await next(), await next(), await next()];
    expect(rounds.map(({ length }) => length)).to.deep.equal([16, 16, 9, 1]);
    expect(rounds.flat()).to.deep.equal(Array.from({ length: 42 }, (_, n) => n));
  });

  it('lets tenants take turns, however many and large the events of one are', async () => {
    const addFor = (tenantId: string, events: readonly OutboxEvent[]) =>
      test.database.tenant(tenantId, (tx) =>
        enqueueAll(
          tx,
          events.map((added) => ({ ...added, tenantId })),
          systemClock,
        ),
      );
    const next = async () => {
      const rows = await test.database.system((tx) => nextEvents(tx));
      return Map.groupBy(rows, ({ tenant_id: tenantId }) => tenantId);
    };
    const numbered = (count: number, kibibytes = 0) =>
      Array.from({ length: count }, (_, n) => event('a', n, { data: { n, filling: 'x'.repeat(kibibytes * 1024) } }));
    await add(...numbered(800));
    expect((await next()).get('acme')).to.have.length(500);
    await addFor('many', numbered(300));
    await addFor('few', numbered(3));
    const fair = await next();
    expect([...fair].map(([tenantId, { length }]) => [tenantId, length]).sort()).to.deep.equal([
      ['acme', 166],
      ['few', 3],
      ['many', 166],
    ]);
    for (const rows of fair.values()) {
      expect(rows.map(({ payload }) => (JSON.parse(payload) as { data: { n: number } }).data.n)).to.deep.equal(
        Array.from(rows.keys()),
      );
    }

    await test.database.system((tx) => tx.query('DELETE FROM outbox'));
    await add(...numbered(40, 100));
    await addFor('few', numbered(5, 50));
    const inBytes = await next();
    expect(inBytes.get('few')).to.have.length(5);
    expect(inBytes.get('acme')).to.have.length.within(5, 12);
  });

  it('sets aside an event larger than the broker accepts, logs it once and continues', async () => {
    startRelay();
    await add(event('a', 1), event('a', -1, large), event('a', 2), event('b', 3));
    await drained();
    expect((await stored()).map(({ n }) => n).sort()).to.deep.equal([1, 2, 3]);
    expect(await valueOf('kellet_outbox_set_aside')).to.equal(1);
    const told = lines.filter((line) => line.includes('set aside'));
    expect(told).to.have.length(1);
    expect(JSON.parse(told[0]!)).to.deep.include({ events: 1, reason: 'larger than max_payload of the broker' });
    await new Promise((resolve) => setTimeout(resolve, 1500));
    expect(lines).to.have.length(1);
  });

  it('sets aside what the stream refuses', async () => {
    const manager = await client.jetstreamManager();
    const { config } = await manager.streams.info(streamName);
    await manager.streams.update(streamName, { ...config, max_msg_size: 600 });
    startRelay();
    await add(event('a', -1, { data: { n: -1, filling: 'x'.repeat(500) } }), event('a', 1));
    await drained();
    expect((await stored()).map(({ n }) => n)).to.deep.equal([1]);
    expect(lines.join()).to.contain('message size exceeds maximum allowed');
  });

  it('lets an administrator list events that were set aside and resend them under their id or drop them', async () => {
    startRelay();
    await add(event('a', -1, large), event('b', -1, large), event('c', -1, large));
    await drained();
    const run = async (...args: string[]) => {
      const written: string[] = [];
      const code = await runEventsCommand(args, { database: test.database, write: (line) => written.push(line) });
      return { code, written };
    };
    const { code, written } = await run('list');
    expect(code).to.equal(0);
    const listed = written.map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(listed.map(({ subject }) => subject)).to.deep.equal(['a', 'b', 'c'].map((r) => `device.status.acme.${r}`));
    const [first, second, third] = listed.map(({ event_id }) => event_id as string) as [string, string, string];
    expect(listed[0]).to.include({ tenant_id: 'acme', reason: 'larger than max_payload of the broker' });
    const shown = await run('show', first);
    expect(JSON.parse(shown.written[0]!)).to.deep.include({ id: first });
    expect(await run('drop', second)).to.deep.equal({ code: 0, written: ['1 dropped'] });

    // While the limit stands, a resent event is set aside again.
    await run('resend', first);
    await drained();
    await eventually(async () => (await run('list')).written.length === 2);
    await nats.kill();
    await nats.start(1024 * 1024);
    await eventually(() => broker.isConnected);
    expect(await run('resend', '--all')).to.deep.equal({ code: 0, written: ['2 to be sent again'] });
    await drained();
    expect((await stored()).map(({ id }) => id).sort()).to.deep.equal([first, third].sort());
    expect((await run('list')).written).to.deep.equal([]);

    for (const wrong of [[], ['resend'], ['drop', 'x'], ['nonsense'], ['list', 'x']]) {
      expect((await run(...wrong)).code, wrong.join(' ')).to.equal(2);
    }
    expect(await run('drop', second)).to.deep.equal({ code: 1, written: ['0 dropped'] });
  });

  it('publishes a held event when it is released', async () => {
    const relay = startRelay();
    const [position] = await add(event('a', 1, { holdMilliseconds: 3_600_000 }));
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(await waiting()).to.equal(1);
    await relay.release([position!]);
    await drained();
  });

  it('waits while the broker is down and recreates the stream if it restarts empty', async () => {
    startRelay();
    await add(event('a', 1));
    await drained();
    await nats.kill();
    await eventually(() => !broker.isConnected);
    await add(event('a', 2), event('b', 3));
    await new Promise((resolve) => setTimeout(resolve, 1200));
    expect(await waiting()).to.equal(2);
    expect(await valueOf('kellet_outbox_oldest_seconds')).to.be.greaterThan(0.5);
    await nats.start(1024, false);
    await drained(20_000);
    expect((await stored()).map(({ n }) => n).sort()).to.deep.equal([2, 3]);
  });

  it('publishes for other resources while waiting for a confirmation', async () => {
    const proxy = await TcpProxy.before(nats.url);
    proxy.delayMilliseconds = 2;
    const far = new Broker(proxy.through(nats.url), createLogger('silent'));
    await eventually(() => far.isConnected);
    const count = 3000;
    const events = Array.from({ length: count }, (_, n) => event(`r${n % 500}`, n));
    for (let first = 0; first < count; first += 1000) await add(...events.slice(first, first + 1000));
    const started = performance.now();
    const relay = new OutboxRelay(test.database, far, createLogger('silent'), createMetrics());
    await drained(30_000);
    const seconds = (performance.now() - started) / 1000;
    await relay.close();
    await far.close();
    await proxy.close();
    // One at a time they would take at least a four-millisecond round trip each: twelve seconds.
    expect(seconds).to.be.lessThan(6);
  });
});
