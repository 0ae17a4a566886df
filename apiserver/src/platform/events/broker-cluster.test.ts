// A cluster of three NATS servers loses members, with their files, while events are published and read.
import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { consumeDurably, type DurableConsumer } from '../../chain-anchor/pipeline/durable-consumer.ts';
import { systemClock } from '../clock.ts';
import { createLogger } from '../observability/logger.ts';
import { createMetrics } from '../observability/metrics.ts';
import { eventually } from '../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { TestNatsCluster } from '../testing/test-nats-cluster.ts';
import { Broker } from './broker.ts';
import { enqueueAll, OutboxRelay } from './outbox.ts';
import { StreamReader } from './stream-reader.ts';
import { confirmationSubject, streamName } from './subjects.ts';

const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'silent');

describe('a NATS cluster of three', function () {
  this.timeout(180_000);
  let cluster: TestNatsCluster;
  let test: TestDatabase;
  let client: NatsConnection;
  let broker: Broker;
  let connection: NatsConnection;
  let relay: OutboxRelay;
  let reader: StreamReader;
  let consumer: DurableConsumer;
  const read = new Set<number>();
  const consumed = new Set<number>();
  const acknowledged: number[] = [];
  let next = 0;
  let isOn = true;
  let load: Promise<unknown>;

  const publishDirectly = async (): Promise<void> => {
    const n = next++;
    const payload = new TextEncoder().encode(JSON.stringify({ n }));
    // A sender of callbacks repeats what was not acknowledged.
    while (isOn) {
      const isStored = await broker.publish(confirmationSubject, payload, `direct-${n}`).then(
        () => true,
        () => false,
      );
      if (isStored) return void acknowledged.push(n);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  };
  const publishByOutbox = async (): Promise<void> => {
    const n = next++;
    const event = { tenantId: 'acme', subject: 'device.status.acme.d', resource: 'd', data: { n } };
    await test.database.tenant('acme', (tx) => enqueueAll(tx, [event], systemClock));
    acknowledged.push(n);
  };
  const numberOf = (payload: Uint8Array): number => {
    const event = JSON.parse(new TextDecoder().decode(payload)) as { n?: number; data?: { n: number } };
    return event.n ?? event.data!.n;
  };
  const streamLeader = async (): Promise<string> => {
    const manager = await client.jetstreamManager();
    return (await manager.streams.info(streamName)).cluster?.leader ?? '';
  };
  /** Returns the member that alone holds the consumer of the reader. */
  const readerLeader = async (): Promise<string> => {
    const manager = await client.jetstreamManager();
    const consumers = await manager.consumers.list(streamName).next();
    return consumers.find(({ config }) => !config.durable_name)?.cluster?.leader ?? '';
  };
  /** Waits until everything that was acknowledged so far was read by both consumers. */
  const caughtUp = async () => {
    const last = acknowledged.length;
    await eventually(() => acknowledged.length > last + 50, 60_000);
    const soFar = acknowledged.slice(0, last);
    await eventually(() => soFar.every((n) => read.has(n)), 60_000);
  };
  const isWhole = async (): Promise<boolean> => {
    const manager = await client.jetstreamManager();
    const { cluster: state } = await manager.streams.info(streamName);
    return state?.replicas?.length === 2 && state.replicas.every(({ current }) => current);
  };

  before(async () => {
    [cluster, test] = await Promise.all([TestNatsCluster.start(), createTestDatabase()]);
    client = await connect({
      servers: cluster.urls.map((url) => url.slice('nats://'.length)),
      ...{ maxReconnectAttempts: -1, reconnectTimeWait: 100, timeout: 5000 },
    });
    // The first URL is of a server that is not there.
    broker = new Broker(['nats://127.0.0.1:1', ...cluster.urls].join(','), logger, 3);
    connection = await new Promise((resolve) => broker.whenConnected(resolve));
    relay = new OutboxRelay(test.database, broker, logger, createMetrics());
    reader = new StreamReader(connection, logger, (_subject, payload) => void read.add(numberOf(payload)));
    await reader.start();
    const handle = async ({ data }: { data: Uint8Array }) => void consumed.add(numberOf(data));
    consumer = consumeDurably(broker, 'test-confirmations', confirmationSubject, handle, logger);
    load = Promise.all(
      [publishDirectly, publishDirectly, publishByOutbox].map(async (publish) => {
        for (; isOn; await new Promise((resolve) => setTimeout(resolve, 10))) await publish();
      }),
    );
    await eventually(() => acknowledged.length > 100);
  });
  after(async () => {
    isOn = false;
    await load;
    reader.stop();
    await consumer.stop();
    await relay.close();
    await broker.close();
    await client.close();
    await cluster.stop();
    await test.drop();
  });

  it('stores each event on as many members as configured', async () => {
    const manager = await client.jetstreamManager();
    const { config, cluster: state } = await manager.streams.info(streamName);
    expect(config.num_replicas).to.equal(3);
    expect(state!.replicas).to.have.length(2);
  });

  for (const [what, find] of [
    ['the one that the process is connected to', async () => connection.info!.server_name],
    ['the leader of the stream', streamLeader],
    ['the one with the consumer of a reader', readerLeader],
  ] as const) {
    it(`goes on, also for who reads, when a member is killed and its disk lost: ${what}`, async () => {
      let name = '';
      // A cluster without a leader does not answer.
      await eventually(async () => (name = await find().catch(() => '')) !== '');
      await cluster.kill(name, { alsoFiles: true });
      await caughtUp();
      expect(connection.info!.server_name).not.to.equal(name);
      await cluster.startMember(name);
      await eventually(() => isWhole().catch(() => false), 60_000);
    });
  }

  it('has every acknowledged event, and both kinds of consumers have received them', async () => {
    isOn = false;
    await load;
    await eventually(async () => {
      const { rows } = await test.database.system((tx) => tx.query('SELECT FROM outbox LIMIT 1'));
      return rows.length === 0;
    });
    const manager = await client.jetstreamManager();
    const { state } = await manager.streams.info(streamName);
    const stored = new Map<number, string>();
    for (let seq = state.first_seq; seq <= state.last_seq; seq += 1) {
      const { data, subject } = await manager.streams.getMessage(streamName, { seq });
      stored.set(numberOf(data), subject);
    }
    expect(acknowledged.filter((n) => !stored.has(n))).to.deep.equal([]);
    await eventually(() => acknowledged.every((n) => read.has(n)));
    const confirmations = acknowledged.filter((n) => stored.get(n) === confirmationSubject);
    expect(confirmations).not.to.deep.equal([]);
    // What was on its way when a member was killed comes again after 30 s.
    await eventually(() => confirmations.every((n) => consumed.has(n)), 60_000);
  });

  it('is refused over a connection without TLS if the URL asks for TLS', async () => {
    const lines: string[] = [];
    const strict = new Broker(
      cluster.urls[0]!.replace('nats:', 'tls:'),
      createLogger('warn', {}, { write: (line: string) => void lines.push(line) }),
    );
    await eventually(() => lines.some((line) => line.includes('unreachable')));
    expect(strict.isConnected).to.equal(false);
    await strict.close();
  });
});
