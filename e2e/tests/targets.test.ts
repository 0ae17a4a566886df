// Gateway and telemetry in separate processes beside the stack's: clients see no difference.
import { create, type Message } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError, status } from '@grpc/grpc-js';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { type IngestStreamResponse, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { grpcService } from '../../apiserver/src/platform/grpc/grpc-service.ts';
import { followEvents } from '../../dev/clients/broker-events.ts';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { SimulatedDevice } from '../../dev/devices/device.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import type { TargetPorts } from '../../dev/stack/stack.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice, makeFleet, makePackage, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';
import { grpcCall } from '../testing/grpc-call.ts';

describe('targets in separate processes', function () {
  this.timeout(120_000);
  let gateway: TargetPorts;
  let telemetry: TargetPorts;
  /** The administrator's client, through the separate gateway. */
  let apart: Rest;
  let device: SimulatedDevice;

  before(async () => {
    telemetry = await stack().startTarget('target-telemetry', 'telemetry');
    gateway = await stack().startTarget('target-gateway', 'gateway', {
      KELLET_SERVICE_ADDRESSES: `telemetry=${telemetry.control},*=${stack().control}`,
      // The gateway target has no signing key.
      KELLET_JWT_PRIVATE_KEY_FILE: '',
    });
    apart = await Rest.login(gateway.rest, stack().info);
    device = await makeDevice(apart);
  });
  after(async () => {
    for (const name of ['target-gateway', 'target-telemetry'] as const) await stack().stopProcess(name);
  });

  const history = (rest: Rest) =>
    rest.list<{ timestamp: string; anchored?: boolean }>(`/api/v1/telemetry/${device.deviceId}`, 'points', {
      page_size: 100,
    });
  const outcome = async (rest: Rest, path: string) => {
    const { status: http, body } = await rest.send<{ code?: string; message?: string }>('GET', path);
    return { http, code: body.code, message: body.message };
  };

  it('report only their own dependencies', async () => {
    const readiness = async (base: string) => (await new Rest(base).send<object>('GET', '/readyz')).body;
    const targets = ['auth', 'chain-anchor', 'device-link', 'device-registry', 'rules-engine', 'telemetry', 'verifier'];
    expect(await readiness(gateway.rest)).to.have.all.keys('postgres', 'nats', ...targets);
    expect(await readiness(telemetry.metrics)).to.have.all.keys('postgres');
    for (const { metrics } of [gateway, telemetry]) {
      expect((await new Rest(metrics).send('GET', '/healthz')).status).to.equal(200);
      expect((await new Rest(metrics).send<string>('GET', '/metrics')).body).to.match(/^# TYPE kellet_/m);
    }
  });

  it('report processor and header source only in a process that runs only chain-anchor', async () => {
    const { metrics } = await stack().startTarget('target-anchor', 'chain-anchor');
    const { body } = await new Rest(metrics).send<Record<string, string>>('GET', '/readyz');
    expect(body).to.deep.equal({ postgres: 'healthy', nats: 'healthy', processor: 'healthy', headers: 'healthy' });
    await stack().stopProcess('target-anchor');
  });

  it('accept, return and prove points', async () => {
    const readings = replay(weatherStations(), 0, 50);
    expect(await device.send(readings)).to.include({ accepted: 50, rejected: 0 });
    for (const rest of [apart, await admin()]) expect(await history(rest)).to.have.length(50);
    const latest = await apart.get<{ timestamp: string }>(`/api/v1/telemetry/${device.deviceId}/latest`);
    expect(Date.parse(latest.timestamp)).to.equal(Date.parse(readings.at(-1)!.timestamp));
    await waitUntil(
      async () => (await apart.get<{ status: string }>(`/api/v1/devices/${device.deviceId}`)).status === 'online',
      { what: 'online', timeoutMilliseconds: 2000 },
    );
    await waitUntil(async () => (await history(apart)).every(({ anchored }) => anchored), {
      what: 'proofs',
      timeoutMilliseconds: 60_000,
    });
    const raw = { device_id: device.deviceId, ...readings[0]! };
    expect(await apart.post('/api/v1/verify/raw', raw)).to.include({ verified: true });
  });

  it('return the same errors', async () => {
    const unknownId = '0192f0e0-0000-7000-8000-000000000000';
    for (const path of [
      `/api/v1/devices/${unknownId}`,
      `/api/v1/telemetry/${unknownId}/latest`,
      '/api/v1/devices?page_size=-1',
      '/api/v1/devices?page_token=x',
      `/api/v1/verify/hash/${'0'.repeat(64)}`,
      '/api/v1/nothing',
    ]) {
      const here = await outcome(apart, path);
      expect(here, path).to.deep.equal(await outcome(await admin(), path));
      expect(here.http, path).to.be.within(400, 404);
    }
  });

  it('publish a claim right after its response, without waiting for a sweep', async () => {
    const events = await followEvents(stack().info.natsUrl, 'device.provisioned');
    try {
      const { profile_id } = await makeProfile(apart);
      const claimed = (await makeFleet(apart, profile_id, 1)).devices[0]!;
      const published = () => events.received.some(({ data }) => JSON.stringify(data).includes(claimed.deviceId));
      await waitUntil(published, { what: 'device.provisioned', timeoutMilliseconds: 900, intervalMilliseconds: 20 });
    } finally {
      await events.close();
    }
  });

  it('push the points of all processes to sockets of all gateways, in order', async () => {
    const feeds = [await LiveFeed.open(gateway.rest, apart.token), await LiveFeed.open(stack().info.rest, apart.token)];
    try {
      for (const feed of feeds) await feed.subscribe({ channel: 'telemetry.live', device_id: device.deviceId });
      const viaStack = new SimulatedDevice({ base: stack().info.rest, name: '', hardwareId: '' });
      viaStack.adopt(device);
      const readings = replay(weatherStations(), 1000, 40);
      await device.send(readings.slice(0, 20));
      await viaStack.send(readings.slice(20));
      for (const feed of feeds) {
        await waitUntil(() => feed.points(device.deviceId).length === 40, {
          what: '40 points',
          timeoutMilliseconds: 5000,
        });
        const times = feed.points(device.deviceId).map(({ timestamp }) => Date.parse(timestamp));
        const sent = readings.map(({ timestamp }) => Date.parse(timestamp));
        // Points of one process arrive in order; there is no order between processes.
        expect(times.filter((time) => sent.indexOf(time) < 20)).to.deep.equal(sent.slice(0, 20));
        expect(times.filter((time) => sent.indexOf(time) >= 20)).to.deep.equal(sent.slice(20));
      }
    } finally {
      for (const feed of feeds) feed.close();
    }
  });

  it('update devices: rollout, pause, chunks', async () => {
    const profile = await makeProfile(apart);
    const target = (await makeFleet(apart, profile.profile_id, 1)).devices[0]!;
    const { package_id, artifact } = await makePackage(apart, {
      version: '2.0.0',
      compatibility: { device_type: profile.type },
    });
    const rollout = await apart.post<Rollout>('/api/v1/ota/rollouts', {
      package_id,
      target_profile_id: profile.profile_id,
      canary_percent: 100,
      name: unique('rollout'),
    });
    expect(rollout).to.include({ status: 'active', scheduled_count: 1 });
    const commands = await waitUntil(async () => (await target.poll(5)).at(0), { what: 'ota_start' });
    expect(commands.method).to.equal('ota_start');
    const chunk = await target.rest.get<{ data: string }>(`/api/v1/devices/${target.deviceId}/ota/chunk`, {
      package_id,
      offset: 65_536,
      length: 1000,
    });
    expect(Buffer.from(chunk.data, 'base64').equals(artifact.bytes.subarray(65_536, 66_536))).to.equal(true);
    const path = `/api/v1/ota/rollouts/${rollout.rollout_id}`;
    expect(await apart.post(`${path}/pause`)).to.include({ status: 'paused' });
    expect(await (await admin()).get(path)).to.include({ status: 'paused' });
  });

  describe('over gRPC', () => {
    let client: Client;
    before(() => (client = new Client(gateway.grpc, credentials.createInsecure())));
    after(() => client.close());

    it('serve calls, with the same error codes', async () => {
      const { getDevice } = DeviceRegistryService.method;
      // Identity headers of a client are ignored.
      const found = await grpcCall(client, getDevice, { deviceId: device.deviceId }, apart.token, {
        'x-tenant-id': 'acme',
      });
      expect(found.deviceId).to.equal(device.deviceId);
      const refusal = async (request: Promise<unknown>) =>
        (await request.then(
          () => expect.fail('the call succeeded'),
          (error: unknown) => error,
        )) as ServiceError;
      const missing = await refusal(
        grpcCall(client, getDevice, { deviceId: '0192f0e0-0000-7000-8000-000000000000' }, apart.token),
      );
      expect(missing.code).to.equal(status.NOT_FOUND);
      expect(missing.metadata.get('x-request-id')).to.have.length(1);
      expect((await refusal(grpcCall(client, getDevice, { deviceId: device.deviceId }, 'invalid'))).code).to.equal(
        status.UNAUTHENTICATED,
      );
    });

    it('stream points in and acknowledgements out', async () => {
      const { path, requestSerialize, responseDeserialize } = grpcService(TelemetryService)['IngestStream']!;
      const metadata = new Metadata();
      metadata.set('authorization', `Bearer ${device.apiKey}`);
      const stream = client.makeBidiStreamRequest<Message, Message>(
        path,
        requestSerialize,
        responseDeserialize as (bytes: Buffer) => Message,
        metadata,
      );
      const acknowledged: number[] = [];
      const ended = new Promise((resolve, reject) => {
        stream.on('data', ({ sequence, accepted }: Message & IngestStreamResponse) => {
          expect(accepted).to.equal(10);
          acknowledged.push(sequence);
        });
        stream.on('end', resolve);
        stream.on('error', reject);
      });
      for (let sequence = 1; sequence <= 3; sequence += 1) {
        const points = replay(weatherStations(), 2000 + sequence * 10, 10).map((point) => ({
          deviceId: device.deviceId,
          timestamp: point.timestamp,
          numericValues: point.numeric_values,
          stringValues: point.string_values,
        }));
        stream.write(create(TelemetryService.method.ingestStream.input, { sequence, points }));
      }
      stream.end();
      await ended;
      expect(acknowledged).to.deep.equal([1, 2, 3]);
    });
  });

  it('apply a revocation within a second', async () => {
    const session = await Rest.login(stack().info.rest, stack().info);
    const there = new Rest(gateway.rest, session.token);
    expect((await there.send('GET', '/api/v1/devices')).status).to.equal(200);
    const feed = await LiveFeed.open(gateway.rest, session.token);
    const closed = feed.closed();
    await feed.subscribe({ channel: 'telemetry.live', device_id: device.deviceId });
    await session.post('/api/v1/auth/logout');
    const revoked = async () => (await there.send('GET', '/api/v1/devices')).status === 401;
    await waitUntil(revoked, { what: '401', timeoutMilliseconds: 1000, intervalMilliseconds: 20 });
    expect(await closed).to.equal(4401);
  });

  it('fail independently, and recover automatically', async () => {
    const path = `/api/v1/telemetry/${device.deviceId}/latest`;
    await stack().stopProcess('target-telemetry');
    const unavailable = await outcome(apart, path);
    expect(unavailable).to.deep.equal({ http: 503, code: 'UNAVAILABLE', message: 'telemetry is not available' });
    expect((await apart.send('GET', `/api/v1/devices/${device.deviceId}`)).status).to.equal(200);
    const readiness = await new Rest(gateway.rest).send<Record<string, string>>('GET', '/readyz');
    expect(readiness.status).to.equal(503);
    expect(readiness.body).to.include({ telemetry: 'unhealthy: UNAVAILABLE', 'device-registry': 'healthy' });
    expect((await new Rest(gateway.rest).send('GET', '/readyz?exclude=telemetry')).status).to.equal(200);
    await stack().startProcess('target-telemetry');
    const isBack = async () => (await outcome(apart, path)).http === 200;
    await waitUntil(isBack, { what: 'telemetry through the gateway', timeoutMilliseconds: 5000 });

    await stack().kill('target-telemetry');
    await stack().waitReady('target-telemetry');
    await waitUntil(isBack, { what: 'telemetry after kill -9', timeoutMilliseconds: 5000 });
    expect(await device.send(replay(weatherStations(), 3000, 5))).to.include({ accepted: 5 });
  });

  it('report a frozen one within seconds, and recover at once', async () => {
    const path = `/api/v1/telemetry/${device.deviceId}/latest`;
    const point = replay(weatherStations(), 4000, 1);
    stack().signal('target-telemetry', 'SIGSTOP');
    try {
      for (const call of [outcome(apart, path), outcome(apart, path)]) {
        const before = performance.now();
        expect(await call).to.include({ http: 503, code: 'UNAVAILABLE' });
        expect(performance.now() - before).to.be.lessThan(9000);
      }
      const points = point.map((reading) => ({ device_id: device.deviceId, ...reading }));
      expect((await device.rest.send('POST', '/api/v1/telemetry', { body: { points } })).status).to.equal(503);
      const { status, body } = await new Rest(gateway.rest).send<Record<string, string>>('GET', '/readyz');
      expect(status).to.equal(503);
      expect(body['telemetry']).to.match(/^unhealthy/);
      expect((await apart.send('GET', `/api/v1/devices/${device.deviceId}`)).status).to.equal(200);
    } finally {
      stack().signal('target-telemetry', 'SIGCONT');
    }
    await waitUntil(async () => (await outcome(apart, path)).http === 200, {
      what: 'telemetry after SIGCONT',
      timeoutMilliseconds: 2500,
    });
    expect(await device.send(point)).to.include({ accepted: 1 });
    await waitUntil(async () => (await new Rest(gateway.rest).send('GET', '/readyz')).status === 200, {
      what: 'readiness after SIGCONT',
      timeoutMilliseconds: 2500,
    });
  });
});
