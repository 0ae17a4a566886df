// Effects of hostile clients on a real process: bounded memory, and little delay for other callers.
import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import path from 'node:path';
import { deflateSync } from 'node:zlib';
import { expect } from 'chai';
import { insertUser } from './auth/accounts/account-store.ts';
import { hashPassword } from './auth/accounts/passwords.ts';
import { mintDeviceKey } from './auth/device-credentials/device-keys.ts';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { framed } from './gateway/testing/test-grpc.ts';
import { newId } from './platform/ids.ts';
import { eventually } from './platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import type { Attack, AttackReport } from './testing/test-hostile-clients.ts';
import { type TestProcess, TestProcesses } from './testing/test-process.ts';

const tenant = 'acme';
const mebibyte = 1024 * 1024;
const attackMilliseconds = 2000;

interface Observed {
  readonly medians: readonly number[];
  readonly memory: number;
}

const quartile = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 2]!;
const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;

/** Reports whether requests take little longer during an attack than usually. */
const isLittle = (usual: Observed, attacked: Observed): boolean =>
  quartile(attacked.medians) < median(usual.medians) * 2 + 10;

describe('kellet-apiserver under attack', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  let server: TestProcess;
  let deviceId: string;
  let key: string;
  let token: string;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenant);
    await test.database.system((tx) => tx.query('UPDATE tenants SET rate_limit_per_minute = 1000000'));
    deviceId = newId();
    key = await test.database.tenant(tenant, async (tx) => {
      const columns = [tenant, deviceId];
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'a', 'a')`,
        columns,
      );
      return mintDeviceKey(tx, tenant, deviceId);
    });
    const user = { userId: newId(), tenantId: tenant, email: 'viewer@test', name: '', role: 'viewer' } as const;
    const passwordHash = await hashPassword('correct horse battery');
    await test.database.system((tx) => insertUser(tx, { ...user, passwordHash, disabled: false }));
    processes = await TestProcesses.create(test.url);
    server = await processes.start({ KELLET_ACCESS_LOG: 'off' });
    const login = await fetch(url('/api/v1/auth/login'), {
      method: 'POST',
      body: JSON.stringify({ email: 'viewer@test', password: 'correct horse battery' }),
    });
    token = ((await login.json()) as { access_token: string }).access_token;
  });
  after(async () => {
    await processes.kill();
    await processes.remove();
    await test.drop();
  });

  const url = (route: string) => `http://127.0.0.1:${server.ports.restPort}${route}`;
  const residentBytes = () =>
    Number(execFileSync('ps', ['-o', 'rss=', '-p', String(server.child.pid)], { encoding: 'utf8' })) * 1024;

  /**
   * Sends GET requests for a device one after the other. Returns their latencies in milliseconds (the median of each
   * fifth of a second) and the maximum resident memory.
   */
  async function observe(milliseconds: number): Promise<Observed> {
    let latencies: number[] = [];
    const medians: number[] = [];
    let memory = residentBytes();
    let sampled = performance.now();
    for (const end = performance.now() + milliseconds; performance.now() < end;) {
      const begun = performance.now();
      const response = await fetch(url(`/api/v1/devices/${deviceId}`), {
        headers: { authorization: `Bearer ${token}` },
      });
      await response.text();
      expect(response.status).to.equal(200);
      latencies.push(performance.now() - begun);
      if (performance.now() - sampled > 200) {
        memory = Math.max(memory, residentBytes());
        medians.push(median(latencies));
        latencies = [];
        sampled = performance.now();
      }
    }
    return { medians, memory };
  }

  /** Sends requests for a while: memory used before the first garbage collection is unrelated to an attack. */
  async function warmUp(ordinary: () => Promise<Response>): Promise<void> {
    const until = performance.now() + 1000;
    while (performance.now() < until) {
      await Promise.all(Array.from({ length: 4 }, async () => (await ordinary()).arrayBuffer()));
    }
  }

  /**
   * `ordinary` is a request of the size that the attack uses, sent and accepted normally. `meanwhile` runs while the
   * clients are connected.
   */
  async function attack(
    attacks: readonly Omit<Attack, 'port'>[],
    ordinary: () => Promise<Response>,
    meanwhile?: () => Promise<void>,
  ) {
    await warmUp(ordinary);
    const before = await observe(600);
    const reports: AttackReport[] = [];
    const children = attacks.map((one, index) => {
      const child = fork(path.join(import.meta.dirname, 'testing/test-hostile-clients.ts'));
      const isGrpc = ['grpc', 'begin calls', 'hold messages'].includes(one.kind);
      child.send({ ...one, port: isGrpc ? server.ports.grpcPort : server.ports.restPort });
      child.on('message', (report) => (reports[index] = report as AttackReport));
      return child;
    });
    let during: Observed;
    try {
      during = await observe(meanwhile ? 1000 : attackMilliseconds);
      await meanwhile?.();
      during = { ...during, memory: Math.max(during.memory, residentBytes()) };
      // The attack lasts throughout, while other load on this machine comes and goes.
      for (let again = 0; again < 3 && !isLittle(before, during); again += 1) {
        const { medians, memory } = await observe(1000);
        during = { medians, memory: Math.max(during.memory, memory) };
      }
      // On a busy machine it takes an attacker seconds to begin.
      await eventually(() => attacks.every((_, index) => reports[index] !== undefined), 20_000);
    } finally {
      for (const child of children) {
        const ended = once(child, 'exit');
        child.disconnect();
        await ended;
      }
    }
    const after = await observe(600);
    return {
      grownMebibytes: (during.memory - before.memory) / mebibyte,
      latencies: [Math.max(median(before.medians), median(after.medians)), quartile(during.medians)] as const,
      reports,
    };
  }

  /**
   * `mebibytes` is what the attackers may take: by default 64, and what the heap grows by before it is collected on a busy machine;
   * `milliseconds`, how much longer others may wait.
   */
  function expectHarmless(
    { grownMebibytes, latencies: [usual, attacked] }: Awaited<ReturnType<typeof attack>>,
    mebibytes = 64 + 32,
    milliseconds = 200,
  ): void {
    expect(grownMebibytes, 'mebibytes of resident memory').to.be.below(mebibytes);
    // A server that works for the attackers keeps others waiting for seconds; other load on this machine, for less.
    expect(attacked, `milliseconds, without attack ${usual}`).to.be.below(usual * 4 + milliseconds);
  }

  /** A mebibyte of mostly white space. */
  const post = () =>
    fetch(url('/api/v1/telemetry'), {
      method: 'POST',
      headers: { 'x-api-key': key },
      body: `{"points":[]${' '.repeat(mebibyte)}}`,
    });

  const upgrade = (query: string) =>
    [
      `GET /ws?token=${query} HTTP/1.1`,
      'Host: a',
      'Connection: Upgrade',
      'Upgrade: websocket',
      'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
      'Sec-WebSocket-Version: 13',
      '\r\n',
    ].join('\r\n');

  it('gives no memory to sockets without a credential', async () => {
    const seen = await attack(
      [{ kind: 'flood /ws', connections: 200, request: upgrade('x'), messageBytes: 200_000 }],
      post,
    );
    expectHarmless(seen);
    expect(seen.reports[0]!.opened).to.be.at.least(200);
  });

  it('closes a socket that a viewer floods', async () => {
    const seen = await attack(
      [
        { kind: 'flood /ws', connections: 100, request: upgrade(token), messageBytes: 200_000 },
        { kind: 'flood /ws', connections: 100, request: upgrade(token), messageBytes: 50_000 },
      ],
      post,
    );
    expectHarmless(seen);
    for (const { opened } of seen.reports) expect(opened).to.be.at.least(100);
  });

  it('holds few bytes of bodies from unauthenticated senders', async () => {
    const held = (route: string, bytes: number) =>
      `POST ${route} HTTP/1.1\r\nHost: a\r\nX-ARC-Signature: sha256=${'0'.repeat(64)}\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${bytes}\r\n\r\n${' '.repeat(bytes - 1)}`;
    const seen = await attack(
      [
        { kind: 'hold bodies', connections: 200, request: held('/api/v1/callbacks/arc', 1_000_000) },
        { kind: 'hold bodies', connections: 200, request: held('/api/v1/auth/login', 1_000_000) },
      ],
      post,
    );
    expectHarmless(seen);
    for (const { opened } of seen.reports) expect(opened).to.be.at.least(200);
  });

  it('keeps little besides the bytes of bodies that arrive byte by byte', async () => {
    const head = 'POST /api/v1/auth/refresh HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n';
    const seen = await attack(
      [{ kind: 'hold bodies', connections: 64, request: head + '1\r\n \r\n'.repeat(60_000) }],
      post,
    );
    expect(seen.grownMebibytes, 'mebibytes of resident memory').to.be.below(64 + 32);
    expect(seen.reports[0]!.opened).to.be.at.least(64);
  });

  it('keeps little besides the bytes of gRPC messages that arrive byte by byte', async () => {
    const frame = (type: number, flags: number, stream: number, payload: Buffer): Buffer => {
      const head = Buffer.alloc(9);
      head.writeUIntBE(payload.length, 0, 3);
      head.set([type, flags], 3);
      head.writeUInt32BE(stream, 5);
      return Buffer.concat([head, payload]);
    };
    /** A header that is neither compressed nor indexed (RFC 7541, 6.2.2). */
    const header = (name: string, value: string): Buffer =>
      Buffer.from(`\0${String.fromCharCode(name.length)}${name}${String.fromCharCode(value.length)}${value}`, 'latin1');
    const headers = Buffer.concat([
      header(':method', 'POST'),
      header(':scheme', 'http'),
      header(':authority', 'a'),
      header(':path', '/kellet.v1.AuthService/Refresh'),
      header('content-type', 'application/grpc'),
      header('te', 'trailers'),
    ]);
    const request = Buffer.concat([
      Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
      frame(4, 0, 0, Buffer.alloc(0)),
      frame(1, 4, 1, headers),
      frame(0, 0, 1, Buffer.from([0, 0, 0, 0xff, 0])),
      ...Array.from({ length: 60_000 }, () => frame(0, 0, 1, Buffer.alloc(1))),
    ]);
    const seen = await attack([{ kind: 'hold messages', connections: 60, request: request.toString('base64') }], post);
    expect(seen.grownMebibytes, 'mebibytes of resident memory').to.be.below(64 + 32);
    expect(seen.reports[0]!.opened).to.be.at.least(60);
  });

  it('reads no further requests while many wait for their responses', async () => {
    const login = JSON.stringify({ email: 'nobody@test', password: 'wrong' });
    const first = `POST /api/v1/auth/login HTTP/1.1\r\nHost: a\r\nContent-Length: ${login.length}\r\n\r\n${login}`;
    const next = `GET /x HTTP/1.1\r\nHost: a\r\nX-Filler: ${'x'.repeat(14_000)}\r\n\r\n`;
    const seen = await attack([{ kind: 'pipeline', connections: 100, request: first + next.repeat(500) }], post);
    expectHarmless(seen);
  });

  const ingestStream = '/kellet.v1.TelemetryService/IngestStream';
  /** Returns the keys of so many devices. */
  const keysOf = async (count: number) => (await devicesWithKeys(count)).map(({ key: ofDevice }) => ofDevice);
  const devicesWithKeys = (count: number) =>
    test.database.tenant(tenant, async (tx) => {
      const keys: { deviceId: string; key: string }[] = [];
      for (let index = 0; index < count; index += 1) {
        const columns = [tenant, newId(), newId()];
        await tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, $3, $3)`,
          columns,
        );
        keys.push({ deviceId: columns[1]!, key: await mintDeviceKey(tx, tenant, columns[1]!) });
      }
      return keys;
    });

  it('keeps no bodies of calls that wait', async () => {
    await warmUp(post);
    const before = await observe(600);
    const body = `{${' '.repeat(mebibyte - 2)}}`;
    const sockets: Socket[] = [];
    let ended = 0;
    for (const polling of await devicesWithKeys(75)) {
      for (let poll = 0; poll < 4; poll += 1) {
        const socket = connect(server.ports.restPort, '127.0.0.1');
        socket.on('error', () => undefined).once('data', () => (ended += 1));
        socket.write(
          `GET /api/v1/devices/${polling.deviceId}/rpc/pending?wait_seconds=60 HTTP/1.1\r\nHost: a\r\n` +
            `X-API-Key: ${polling.key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
        );
        sockets.push(socket);
      }
      // As fast as they are taken.
      await (await post()).arrayBuffer();
    }
    const during = await observe(attackMilliseconds);
    for (const socket of sockets) socket.destroy();
    expect(ended, 'polls that do not wait').to.be.below(100);
    expect((during.memory - before.memory) / mebibyte, 'mebibytes of resident memory').to.be.below(64 + 96);
  });

  it('takes few messages of a call at once, however many a frame holds', async () => {
    const body = Buffer.alloc(16_380).toString('base64');
    const seen = await attack(
      [{ kind: 'grpc', connections: 100, calls: 8, request: ingestStream, body, keys: await keysOf(100) }],
      post,
    );
    // Without this, 900 MiB, and seven seconds in which nothing else is done.
    expectHarmless(seen, 400, 500);
    expect(seen.reports[0]!.opened).to.be.at.least(100);
  });

  it('expands no compressed messages of gRPC', async () => {
    const squeezed = deflateSync(Buffer.alloc(4 * mebibyte - 16));
    const body = Buffer.concat(Array.from({ length: 3 }, () => framed(squeezed, true))).toString('base64');
    const seen = await attack(
      [
        {
          kind: 'grpc',
          connections: 60,
          calls: 10,
          request: ingestStream,
          body,
          keys: await keysOf(60),
          encoding: 'deflate',
        },
      ],
      post,
    );
    expectHarmless(seen);
    expect(seen.reports[0]!.opened).to.be.at.least(60);
  });

  it('spends little memory and time on health and reflection calls', async () => {
    const name = 'kellet/v1/ota.proto';
    const request = framed(Buffer.concat([Buffer.from([0x1a, name.length]), Buffer.from(name)]));
    const reflection = Buffer.concat(Array.from({ length: 200 }, () => request)).toString('base64');
    const large = framed(Buffer.alloc(4 * mebibyte))
      .subarray(0, 3_500_000)
      .toString('base64');
    const seen = await attack(
      [
        {
          ...{ kind: 'grpc', connections: 2, calls: 20, body: reflection },
          request: '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo',
        },
        { kind: 'grpc', connections: 2, calls: 30, body: large, request: '/grpc.health.v1.Health/Check' },
        {
          ...{ kind: 'grpc', connections: 4, calls: 500, body: framed(Buffer.alloc(0)).toString('base64') },
          request: '/grpc.health.v1.Health/Watch',
        },
      ],
      post,
    );
    expectHarmless(seen);
    for (const { opened } of seen.reports) expect(opened).to.be.at.least(2);
  });

  it('refuses calls of strangers over gRPC without keeping others waiting, however fast they are begun', async () => {
    const ingest = '/kellet.v1.TelemetryService/Ingest';
    const seen = await attack(
      [
        { kind: 'begin calls', connections: 5, request: '/nowhere/Nothing' },
        { kind: 'begin calls', connections: 5, request: ingest, message: 'sk_live_wrong' },
      ],
      post,
    );
    // Connections that exceed what they may are closed and replaced many times a second, each with its streams.
    // Without the limit they take all of the time, for 8 to 16 seconds.
    expectHarmless(seen, 512, 1500);
    for (const { opened } of seen.reports) expect(opened).to.be.at.least(5);
  });

  it('keeps others waiting little for calls over gRPC that are begun and cancelled, whoever begins them', async () => {
    const ingest = '/kellet.v1.TelemetryService/Ingest';
    const seen = await attack(
      [
        { kind: 'begin calls', connections: 10, request: '/nowhere/Nothing', cancels: true },
        { kind: 'begin calls', connections: 10, request: ingest, message: key, cancels: true },
      ],
      post,
    );
    expectHarmless(seen);
    for (const { opened } of seen.reports) expect(opened).to.be.at.least(10);
  });

  it('disconnects a slow reader of /ws before it uses much memory', async () => {
    const values = Object.fromEntries(Array.from({ length: 25 }, (_, index) => [`s${index}`, 'x'.repeat(4000)]));
    const publish = async () => {
      for (let request = 0; request < 20; request += 1) {
        const points = Array.from({ length: 5 }, (_, index) => ({
          device_id: deviceId,
          timestamp: new Date(Date.now() - index).toISOString(),
          string_values: values,
        }));
        await fetch(url('/api/v1/telemetry'), {
          method: 'POST',
          headers: { 'x-api-key': key },
          body: JSON.stringify({ points }),
        });
      }
    };
    const message = JSON.stringify({ subscribe: 'telemetry.live', device_id: deviceId });
    const seen = await attack([{ kind: 'watch', connections: 90, request: upgrade(token), message }], post, publish);
    expectHarmless(seen);
    expect(seen.reports[0]!.opened).to.be.at.least(90);
  });
});
