// Shutdown of a real process with open connections and running requests.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { create, type Message } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { DeviceLinkService, ListPendingRpcsRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { IngestStreamRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { mintDeviceKey } from './auth/device-credentials/device-keys.ts';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { grpcService } from './platform/grpc/grpc-service.ts';
import { newId } from './platform/ids.ts';
import { eventually } from './platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { type TestProcess, TestProcesses } from './testing/test-process.ts';

const tenant = 'acme';
const sleep = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

describe('kellet-apiserver at SIGTERM', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let deviceId: string;
  let key: string;
  let processes: TestProcesses;
  const sockets: Socket[] = [];

  before(async () => {
    test = await createTestDatabase();
    processes = await TestProcesses.create(test.url);
    await insertTenant(test.database, tenant);
    deviceId = newId();
    key = await test.database.tenant(tenant, async (tx) => {
      const columns = [tenant, deviceId];
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'a', 'a')`,
        columns,
      );
      return mintDeviceKey(tx, tenant, deviceId);
    });
  });
  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    await processes.kill();
  });
  after(async () => {
    await processes.remove();
    await test.drop();
  });

  /**
   * Opens a connection, sends this text, and keeps its side open whatever the process does. Records what it receives.
   */
  async function speak(port: number, text = ''): Promise<{ socket: Socket; received: () => string }> {
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    sockets.push(socket);
    let received = '';
    socket.on('error', () => undefined).on('data', (chunk: Buffer) => (received += chunk.toString('latin1')));
    await once(socket, 'connect');
    socket.write(text);
    return { socket, received: () => received };
  }
  const head = (line: string, headers = '') =>
    `${line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n${headers}\r\n`;
  const points = (n: number) =>
    JSON.stringify({ points: [{ device_id: deviceId, timestamp: new Date().toISOString(), numeric_values: { n } }] });

  /** Starts the services in a separate process. Returns it and the settings of a gateway in front of them. */
  async function startServices(): Promise<{ services: TestProcess; settings: Record<string, string> }> {
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    const port = String((probe.address() as AddressInfo).port);
    probe.close();
    const targets = 'auth,device-registry,device-link,telemetry';
    const services = await processes.start({ KELLET_TARGET: targets, KELLET_CONTROL_PORT: port });
    // The gateway does not open this port, on which only services are called: on one machine, it is that of the services.
    const ofGateway = { KELLET_TARGET: 'gateway', KELLET_CONTROL_PORT: port };
    return { services, settings: { ...ofGateway, KELLET_SERVICE_ADDRESSES: `*=127.0.0.1:${port}` } };
  }

  async function endsWell(settings: Record<string, string>): Promise<void> {
    const { ports, child, ended, log } = await processes.start({ KELLET_DRAIN_DELAY_SECONDS: '1', ...settings });
    const { restPort, grpcPort } = ports;
    const poll = await speak(restPort, head(`GET /api/v1/devices/${deviceId}/rpc/pending?wait_seconds=60`));
    const upload = await speak(
      restPort,
      head('POST /api/v1/telemetry', `Content-Length: ${points(1).length}\r\n`) + points(1).slice(0, 20),
    );
    // Idle connections, which must not delay the shutdown.
    const kept = await speak(restPort, head('GET /healthz'));
    await speak(restPort);
    await speak(restPort, 'GET /healthz HT');
    const refused = await speak(restPort, head('GET /ws', 'Connection: Upgrade\r\nUpgrade: websocket\r\n'));
    await speak(grpcPort);
    await speak(grpcPort, 'PRI * HT');
    await speak(grpcPort, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0');
    const client = new Client(`127.0.0.1:${grpcPort}`, credentials.createInsecure());
    const method = grpcService(TelemetryService)['IngestStream']!;
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${key}`);
    const stream = client.makeBidiStreamRequest(
      method.path,
      method.requestSerialize as (value: Message) => Buffer,
      (bytes: Buffer) => bytes,
      metadata,
    );
    const pollByGrpc = new Promise<ServiceError | null>((resolve) => {
      const { path: name, requestSerialize } = grpcService(DeviceLinkService)['ListPendingRpcs']!;
      const request = create(ListPendingRpcsRequestSchema, { deviceId, waitSeconds: 60 });
      client.makeUnaryRequest(name, requestSerialize, (bytes: Buffer) => bytes, request, metadata, resolve);
    });
    const streamEnd = once(stream, 'error') as Promise<[ServiceError]>;
    const point = { deviceId, timestamp: new Date().toISOString(), numericValues: { n: 0 } };
    stream.write(create(IngestStreamRequestSchema, { points: [point] }));
    await once(stream, 'data');
    await eventually(() => kept.received().includes('200 OK') && refused.received().includes('401'));
    // Time for the long poll to start waiting.
    await sleep(300);

    const signalled = performance.now();
    child.kill('SIGTERM');
    const ingest = await speak(
      restPort,
      head('POST /api/v1/telemetry', `Content-Length: ${points(2).length}\r\n`) + points(2),
    );
    const readiness = async () => {
      const probe = await speak(restPort, head('GET /readyz'));
      await eventually(() => probe.received().includes('}'));
      return probe.received();
    };
    let ready = await readiness();
    while (ready.includes('200 OK')) ready = await readiness();
    expect(ready).to.contain('503 Service Unavailable').and.to.contain('unhealthy: draining');
    // It listens until its delay is over, and finishes earlier requests after that.
    await eventually(() => poll.received() !== '', 10_000);
    expect(poll.received()).to.contain('503').and.to.contain('the server is stopping');
    upload.socket.write(points(1).slice(20));
    await eventually(() => upload.received().includes('}') && ingest.received().includes('}'), 10_000);
    for (const { received } of [upload, ingest]) expect(received()).to.contain('200 OK').and.to.contain('"accepted":1');
    expect((await pollByGrpc)?.details).to.equal('the server is stopping');
    expect((await streamEnd)[0].details).to.equal('the server is stopping');
    const { end, at } = await ended;
    client.close();
    expect(end, log()).to.equal(0);
    expect(log()).to.contain('"msg":"stopped"');
    // Far less than running requests may take: one second is the delay, up to two are for clients that have started
    // something.
    expect(at - signalled).to.be.below(9000);
    const { rows } = await test.database.tenant(tenant, (tx) =>
      tx.query<{ status: string }>('SELECT status FROM devices WHERE device_id = $1', [deviceId]),
    );
    expect(rows[0]!.status).to.equal('online');
  }

  it('first becomes not ready, then finishes running requests, and exits without waiting for idle clients', () =>
    endsWell({}));

  it('does so with the gateway in a separate process, whose services follow', async () => {
    const { services, settings } = await startServices();
    await endsWell(settings);
    const signalled = performance.now();
    services.child.kill('SIGTERM');
    const { end, at } = await services.ended;
    expect(end, services.log()).to.equal(0);
    expect(at - signalled).to.be.below(5000);
  });

  it('aborts requests that do not finish in time', async () => {
    const { ports, child, ended, log } = await processes.start({ KELLET_DRAIN_SECONDS: '2' });
    const upload = await speak(
      ports.restPort,
      head('POST /api/v1/telemetry', 'Content-Length: 100\r\n') + points(1).slice(0, 20),
    );
    await sleep(300);
    const signalled = performance.now();
    child.kill('SIGTERM');
    const { end, at } = await ended;
    expect(end, log()).to.equal(0);
    expect(at - signalled).to.be.within(1900, 9000);
    expect(upload.received()).to.equal('');
  });
});
