// The stream of a real NATS server.
import { expect } from 'chai';
import { connect, type NatsConnection, type StreamInfo } from 'nats';
import { createLogger } from '../observability/logger.ts';
import { eventually } from '../testing/eventually.ts';
import { TestNats } from '../testing/test-nats.ts';
import { Broker } from './broker.ts';
import { streamName } from './subjects.ts';

const mebibyte = 1024 * 1024;

describe('the stream of events', function () {
  this.timeout(30_000);
  let nats: TestNats;
  let client: NatsConnection;
  const lines: string[] = [];
  const logger = createLogger('warn', {}, { write: (line: string) => void lines.push(line) });
  const brokers: Broker[] = [];

  before(async () => {
    nats = await TestNats.start(mebibyte, 8 * mebibyte);
    client = await connect({ servers: nats.url });
  });
  after(async () => {
    await Promise.all(brokers.map((broker) => broker.close()));
    await client.close();
    await nats.stop();
  });
  const start = async (streamBytes?: number): Promise<Broker> => {
    const broker = new Broker(nats.url, logger, 0, streamBytes);
    brokers.push(broker);
    await new Promise<unknown>((resolve) => broker.whenConnected(resolve));
    return broker;
  };
  const stream = async (): Promise<StreamInfo> => (await client.jetstreamManager()).streams.info(streamName);
  const publish = async (broker: Broker, count: number): Promise<void> => {
    for (let n = 0; n < count; n += 1) {
      await broker.publish('device.status.acme.d', new Uint8Array(100_000), `${performance.now()}`);
    }
  };

  it('keeps so many bytes and discards the oldest events', async () => {
    const broker = await start(2 * mebibyte);
    await publish(broker, 50);
    const { state } = await stream();
    expect(state.bytes).to.be.within(1.9 * mebibyte, 2 * mebibyte);
    expect(state.last_seq).to.equal(50);
    expect(state.first_seq).to.equal(31);
  });

  it('takes another limit when a process starts with one, and keeps it for those that have none', async () => {
    await start(mebibyte);
    await eventually(async () => (await stream()).state.bytes <= mebibyte);
    await start();
    expect((await stream()).config.max_bytes).to.equal(mebibyte);
    await start(0);
    expect((await stream()).config.max_bytes).to.equal(-1);
    expect(lines).to.deep.equal([]);
  });

  it('stays as it is, with a warning, if the broker has less room than the limit', async () => {
    const broker = await start(100 * mebibyte);
    expect((await stream()).config.max_bytes).to.equal(-1);
    expect(lines.join()).to.contain('less room than KELLET_NATS_STREAM_BYTES');
    await publish(broker, 1);
    const manager = await client.jetstreamManager();
    await manager.streams.delete(streamName);
    // Also if there is none yet.
    await publish(await start(100 * mebibyte), 1);
    expect((await stream()).state.messages).to.equal(1);
  });

  it('is not needed for live messages, of which one that is too large harms no other', async () => {
    const broker = await start();
    const received: number[] = [];
    client.subscribe('telemetry.points.>', { callback: (_error, { data }) => void received.push(data.length) });
    await client.flush();
    for (const bytes of [1, 2 * mebibyte, 2]) broker.publishLive('telemetry.points.acme.d', new Uint8Array(bytes));
    await eventually(() => received.length === 2);
    expect(received).to.deep.equal([1, 2]);
  });
});
