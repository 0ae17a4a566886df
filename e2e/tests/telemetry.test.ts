// The path of a point: ingest, storage, live feed and queries.
import { randomUUID } from 'node:crypto';
import type { Schema } from '@kellet/client';
import { expect } from 'chai';
import { connect } from 'nats';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { RestError } from '../../dev/clients/rest.ts';
import type { Reading } from '../../dev/devices/device.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice } from '../testing/fixtures.ts';

interface Point extends Reading {
  data_hash: string;
}

const reading = (second: number, temperature: number, state = 'on'): Reading => ({
  timestamp: new Date(Date.UTC(2026, 0, 2, 3, 0, second)).toISOString().replace('.000', ''),
  numeric_values: { temperature },
  string_values: { state },
});

const history = async (deviceId: string, query: Record<string, string | number> = {}) =>
  (await (await admin()).get<{ points: Point[] }>(`/api/v1/telemetry/${deviceId}`, query)).points;

const values = ({ timestamp, numeric_values, string_values }: Reading) => ({
  at: Date.parse(timestamp),
  numeric_values,
  string_values,
});

describe('telemetry', () => {
  it('publishes the points of every tenant on the broker', async () => {
    const device = await makeDevice(await admin());
    const url = new URL(stack().info.natsUrl);
    const broker = await connect({ servers: url.host });
    try {
      const messages: { tenantid: string; data: { points: Reading[] } }[] = [];
      broker.subscribe(`telemetry.points.*.${device.deviceId}`, {
        callback: (_error, message) => void messages.push(message.json()),
      });
      await broker.flush();
      const readings = replay(weatherStations(), 0, 20);
      expect(await device.send(readings)).to.include({ accepted: 20 });
      const received = () => messages.flatMap(({ data }) => data.points);
      await waitUntil(async () => received().length === 20, { what: 'the points', timeoutMilliseconds: 5000 });
      expect(received().map(values)).to.deep.equal(readings.map(values));
      expect(new Set(messages.map(({ tenantid }) => tenantid)).size).to.equal(1);
    } finally {
      await broker.close();
    }
  });

  it('accepts points and returns them: latest, history, live, online', async () => {
    const device = await makeDevice(await admin());
    const { base, token } = await admin();
    const feed = await LiveFeed.open(base, token);
    const readings = replay(weatherStations(), 0, 200);
    try {
      await feed.subscribe({ channel: 'telemetry.live', device_id: device.deviceId });
      expect(await device.send(readings)).to.include({ accepted: 200, rejected: 0 });
      await waitUntil(() => feed.points(device.deviceId).length === 200, {
        what: 'the live feed',
        timeoutMilliseconds: 5000,
      });
      expect(feed.points(device.deviceId).map((point) => Date.parse(point.timestamp))).to.deep.equal(
        readings.map((point) => Date.parse(point.timestamp)),
      );
    } finally {
      feed.close();
    }
    // Available at once, whether or not anything has been sealed or indexed.
    expect((await history(device.deviceId, { page_size: 1000 })).map(values)).to.deep.equal(readings.map(values));
    const latest = await (await admin()).get<Reading>(`/api/v1/telemetry/${device.deviceId}/latest`);
    expect(values(latest)).to.deep.equal(values(readings.at(-1)!));

    interface Seen {
      status: string;
      last_seen?: string;
    }
    const look = async () => (await admin()).get<Seen>(`/api/v1/devices/${device.deviceId}`);
    let seen = await look();
    // Other processes know within a second.
    if (stack().isSplit) {
      const isOnline = async () => (seen = await look()).status === 'online';
      await waitUntil(isOnline, { what: 'online', timeoutMilliseconds: 1500 });
    }
    expect(seen.status).to.equal('online');
    expect(Date.now() - Date.parse(seen.last_seen!)).to.be.below(60_000);
  });

  it('pages, orders, filters and aggregates history', async () => {
    const device = await makeDevice(await admin());
    await device.send(Array.from({ length: 10 }, (_, second) => reading(second, second)));
    const path = `/api/v1/telemetry/${device.deviceId}`;
    const paged = await (await admin()).list<Point>(path, 'points', { page_size: 3 });
    expect(paged.map((point) => point.numeric_values['temperature'])).to.deep.equal([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    const exactly = await (await admin()).get<{ next_page_token: string }>(path, { page_size: 10 });
    expect(exactly.next_page_token).to.equal('');
    const newest = await history(device.deviceId, { order: 'desc', page_size: 2 });
    expect(newest.map((point) => point.numeric_values['temperature'])).to.deep.equal([9, 8]);
    const range = await history(device.deviceId, { start: reading(2, 0).timestamp, end: reading(5, 0).timestamp });
    expect(range.map((point) => point.numeric_values['temperature'])).to.deep.equal([2, 3, 4]);
    const buckets = await history(device.deviceId, { interval_seconds: 5, aggregation: 'avg', keys: 'temperature' });
    expect(buckets.map((point) => [Date.parse(point.timestamp), point.numeric_values['temperature']])).to.deep.equal([
      [Date.parse(reading(0, 0).timestamp), 2],
      [Date.parse(reading(5, 0).timestamp), 7],
    ]);
  });

  it('rejects invalid points with a reason, and keeps the others', async () => {
    const device = await makeDevice(await admin(), {
      telemetry_schema: {
        keys: {
          temperature: { type: 'number', required: true, min: -40, max: 85 },
          state: { type: 'string', enum: ['on', 'off'] },
        },
        additional_keys: 'reject',
      },
    });
    const good = reading(0, 20);
    const points = [
      { device_id: device.deviceId, ...good },
      { device_id: device.deviceId, ...reading(1, 99) },
      { device_id: device.deviceId, ...reading(2, 20, 'broken') },
      { device_id: device.deviceId, ...good, numeric_values: { humidity: 5 } },
      { device_id: device.deviceId, ...good, timestamp: 'yesterday' },
      { device_id: device.deviceId, ...good, timestamp: new Date(Date.now() + 3_600_000).toISOString() },
      { device_id: randomUUID(), ...good },
    ];
    const response = await device.rest.post<Schema<'IngestResponse'>>('/api/v1/telemetry', { points });
    expect(response).to.include({ accepted: 1, rejected: 6 });
    expect(response.errors.map(({ index, code }) => [index, code])).to.deep.equal([
      [1, 'INVALID_ARGUMENT'],
      [2, 'INVALID_ARGUMENT'],
      [3, 'INVALID_ARGUMENT'],
      [4, 'INVALID_ARGUMENT'],
      [5, 'INVALID_ARGUMENT'],
      [6, 'NOT_FOUND'],
    ]);
    expect(response.errors[0]!.message).to.contain('temperature');
    expect(await history(device.deviceId)).to.have.length(1);
  });

  it('returns a point that was sent twice once', async () => {
    const device = await makeDevice(await admin());
    await device.send([reading(0, 20)]);
    expect(await device.send([reading(0, 20), reading(1, 21)])).to.include({ accepted: 2 });
    expect(await history(device.deviceId)).to.have.length(2);
  });

  it('replays the response for a repeated Idempotency-Key', async () => {
    const device = await makeDevice(await admin());
    const headers = { 'idempotency-key': randomUUID() };
    const body = { points: [{ device_id: device.deviceId, ...reading(0, 20) }] };
    const first = await device.rest.send('POST', '/api/v1/telemetry', { body, headers });
    const second = await device.rest.send('POST', '/api/v1/telemetry', { body, headers });
    expect(second.body).to.deep.equal(first.body);
    const other = { points: [{ device_id: device.deviceId, ...reading(1, 21) }] };
    const refused = await device.rest
      .call('POST', '/api/v1/telemetry', { body: other, headers })
      .catch((error: unknown) => error);
    expect(refused).to.be.instanceOf(RestError);
    expect((refused as RestError).code).to.equal('FAILED_PRECONDITION');
    expect(await history(device.deviceId)).to.have.length(1);
  });

  it('rejects a live subscriber without a valid token', async () => {
    const { base } = await admin();
    const feed = await LiveFeed.open(base, 'nonsense');
    expect(await feed.closed()).to.equal(4401);
  });
});
