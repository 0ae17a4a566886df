// A tenant moves from one cell to another, a whole installation with its own database, broker, keys and wallet, while its
// devices keep trying: the stack of the tests is the old cell.
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { type Device, openDevice } from '@kellet/device';
import { expect } from 'chai';
import pg from 'pg';
import { absentCluster } from '../../apiserver/src/platform/testing/test-kubeconfig.ts';
import { TcpProxy } from '../../apiserver/src/platform/testing/test-tcp-proxy.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { fetchHeadersFile, verifyOffline } from '../../dev/clients/verify-command.ts';
import { checkout } from '../../dev/stack/paths.ts';
import { findFreePorts } from '../../dev/stack/ports/free-ports.ts';
import { natsServerProgram } from '../../dev/stack/programs/binaries.ts';
import { ed25519PrivateKey, randomHexKey } from '../../dev/stack/secrets.ts';
import { natsInfo } from '../../dev/stack/services/nats.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { makeProfile, makeTemplate, platformAdmin, unique } from '../testing/fixtures.ts';

const execute = promisify(execFile);
const name = 'target-cell' as const;

interface Proof {
  bundle?: { block_header_chain: { height: number }[] };
}

describe('a tenant that moves to another cell', function () {
  this.timeout(240_000);
  const tenantId = unique('mover');
  const account = { email: `admin@${tenantId}.test`, password: 'correct horse battery' };
  const databaseName = tenantId.replace('-', '_');
  const controlSecret = randomHexKey();
  let folder: string;
  /** The address of the tenant, which a route of the Gateway API leads to its cell. */
  let route: TcpProxy;
  let address: string;
  let nats: ChildProcess;
  let newCell: Record<string, string>;
  let newRest: string;
  let provisionKey: string;
  let serviceKey: string;
  let refreshToken: string;
  let anchored: string[];
  const devices: Device[] = [];
  const running: Promise<unknown>[] = [];
  const stop = new AbortController();
  let recording: NodeJS.Timeout;
  let count = 0;
  const begin = Date.UTC(2026, 0, 1);

  /** Runs a statement as a superuser of the stack's PostgreSQL. */
  const onServer = async (statement: string) => {
    const url = new URL(stack().info.databaseUrl);
    url.username = 'postgres';
    url.password = (await readFile(join(dirname(stack().infoPath), 'secrets/postgres-password'), 'utf8')).trim();
    url.pathname = '/postgres';
    const client = new pg.Client({ connectionString: url.href });
    await client.connect();
    await client.query(statement).finally(() => client.end());
  };
  const command = (environment: Record<string, string>, ...args: string[]) =>
    execute(process.execPath, [join(checkout, 'apiserver/src/main.ts'), 'tenant', ...args], {
      env: {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KELLET_CALLBACK_HMAC_SECRET: 'unused',
        ...environment,
      },
    });
  const claim = (rest: Rest, hardwareId: string) =>
    rest.send<{ device_id: string; api_key: string }>('POST', '/api/v1/provision', {
      body: { provision_key: provisionKey, hardware_id: hardwareId, device_name: hardwareId },
    });

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kellet-cells-'));
    const ports = await findFreePorts('nats');
    nats = spawn(
      await natsServerProgram(() => undefined),
      ['--addr', '127.0.0.1', '--port', String(ports.nats), '--jetstream', '--store_dir', join(folder, 'nats')],
      { stdio: 'ignore' },
    );
    await waitUntil(async () => (await natsInfo(ports.nats))?.jetstream, { what: 'the broker of the new cell' });
    await onServer(`CREATE DATABASE ${databaseName} OWNER kellet`);
    const url = new URL(stack().info.databaseUrl);
    url.pathname = `/${databaseName}`;
    await writeFile(join(folder, 'kubeconfig'), absentCluster);
    newCell = {
      KELLET_DATABASE_URL: url.href,
      KELLET_NATS_URL: `nats://127.0.0.1:${ports.nats}`,
      KELLET_CONTROL_SECRET: controlSecret,
      KELLET_JWT_PRIVATE_KEY: ed25519PrivateKey(),
      KELLET_WALLET_KEY: randomHexKey(),
      KELLET_COLD_URL: pathToFileURL(join(folder, 'cold')).href,
      KUBECONFIG: join(folder, 'kubeconfig'),
    };
    newRest = (await stack().startTarget(name, 'all', newCell)).rest;
    route = await TcpProxy.before(stack().info.rest);
    address = new URL(route.through(stack().info.rest)).origin;

    await (
      await platformAdmin()
    ).post('/api/v1/tenants', {
      ...{ tenant_id: tenantId, name: 'Mover', admin_email: account.email, admin_password: account.password },
    });
    const tokens = await new Rest(address).post<{ access_token: string; refresh_token: string }>(
      '/api/v1/auth/login',
      account,
    );
    refreshToken = tokens.refresh_token;
    const rest = new Rest(address, tokens.access_token);
    const profile = await waitUntil(() => makeProfile(rest).catch(() => undefined), {
      ...{ what: 'the namespace of the tenant', timeoutMilliseconds: 30_000 },
    });
    provisionKey = (await makeTemplate(rest, profile.profile_id)).provision_key;
    const key = await rest.post<{ api_key: string }>('/api/v1/auth/api-keys', { name: 'k', scopes: ['devices:read'] });
    serviceKey = key.api_key;
    for (let index = 0; index < 3; index += 1) {
      const hardwareId = unique('mover');
      const device = await openDevice({
        ...{ url: address, folder: join(folder, `device-${index}`) },
        claim: { provision_key: provisionKey, device_name: hardwareId, hardware_id: hardwareId },
        backoff: { firstMilliseconds: 200, longestMilliseconds: 1000 },
        onCommand: ({ params }) => ({ seen: params?.['value'] }),
      });
      devices.push(device);
      running.push(device.run(stop.signal));
    }
    recording = setInterval(() => {
      for (const device of devices) device.record({ count }, new Date(begin + count));
      count += 1;
    }, 20);
    // Points with proofs, and others that are not anchored yet when the tenant moves.
    const first = `/api/v1/telemetry/${devices[0]!.identity.device_id}`;
    anchored = await waitUntil(
      async () => {
        const points = await rest.list<{ data_hash: string; anchored?: boolean }>(first, 'points', { page_size: 1000 });
        const hashes = points.filter((point) => point.anchored).map(({ data_hash }) => data_hash);
        return hashes.length > 20 ? hashes : undefined;
      },
      { what: 'anchored points', timeoutMilliseconds: 60_000, intervalMilliseconds: 500 },
    );
  });
  after(async () => {
    clearInterval(recording);
    stop.abort();
    await Promise.all(running);
    await Promise.all(devices.map((device) => device.close()));
    await stack().stopProcess(name);
    await route?.close();
    if (nats) {
      const ended = once(nats, 'exit');
      nats.kill('SIGKILL');
      await ended;
    }
    await onServer(`DROP DATABASE IF EXISTS ${databaseName} WITH (FORCE)`);
    await (await platformAdmin()).delete(`/api/v1/tenants/${tenantId}`).catch(() => undefined);
    await rm(folder, { recursive: true, force: true });
  });

  it('is suspended, exported, imported and served at the same address', async () => {
    const before = count;
    await (await platformAdmin()).post(`/api/v1/tenants/${tenantId}/suspend`, {});
    const file = join(folder, 'tenant.kellet');
    const { databaseUrl, natsUrl } = stack().info;
    const secretFile = join(dirname(stack().infoPath), 'secrets/control-secret');
    const source = {
      ...{ KELLET_DATABASE_URL: databaseUrl, KELLET_NATS_URL: natsUrl, KELLET_CONTROL_SECRET_FILE: secretFile },
      KELLET_JWT_PRIVATE_KEY: 'unused',
      KELLET_COLD_URL: pathToFileURL(join(checkout, '.kellet/test/cold')).href,
    };
    await command(source, 'export', tenantId, '--to', file);
    const imported = { ...newCell, KELLET_SOURCE_CONTROL_SECRET: (await readFile(secretFile, 'utf8')).trim() };
    await command(imported, 'import', tenantId, '--from', file);
    route.cut();
    route.leadTo(newRest);
    route.restore();
    const platform = await Rest.login(newRest, stack().info.platform);
    await platform.post(`/api/v1/tenants/${tenantId}/unsuspend`, {});
    // The devices have recorded meanwhile, and go on at the new cell by themselves.
    await waitUntil(() => count > before + 100 && devices.every(({ connected }) => connected), {
      ...{ what: 'connections to the new cell', timeoutMilliseconds: 60_000 },
    });
  });

  it('has lost no point, from before, during or after the move, and each device has one chain of them', async () => {
    clearInterval(recording);
    await Promise.all(devices.map((device) => device.flush()));
    const { access_token: token } = await new Rest(address).post<{ access_token: string }>('/api/v1/auth/refresh', {
      refresh_token: refreshToken,
    });
    const rest = new Rest(address, token);
    for (const { identity, telemetry } of devices) {
      expect(telemetry).to.deep.equal({ waiting: 0, dropped: 0 });
      const path = `/api/v1/telemetry/${identity.device_id}`;
      const points = await rest.list<{ numeric_values: { count: number } }>(path, 'points', { page_size: 10_000 });
      expect(points.map(({ numeric_values }) => numeric_values.count)).to.deep.equal(
        Array.from({ length: count }, (_, index) => index),
      );
    }
  });

  it('accepts each credential as before: passwords, keys of services and devices, and keys for claims', async () => {
    const admin = await Rest.login(address, account);
    expect((await new Rest(address, serviceKey).send('GET', '/api/v1/devices')).status).to.equal(200);
    const claimed = await claim(new Rest(address), unique('after-the-move'));
    expect(claimed.status).to.equal(200);
    for (const { identity } of devices) {
      const body = { method: 'look', params: { value: 7 }, persistent: true };
      const { correlation_id } = await admin.post<{ correlation_id: string }>(
        `/api/v1/devices/${identity.device_id}/rpc`,
        body,
      );
      const record = await admin.get(`/api/v1/devices/rpc/${correlation_id}`, { wait_seconds: 30 });
      expect(record).to.deep.include({ status: 'successful', response: { seen: 7 } });
    }
  });

  it('has the proofs of before, which kellet-verify proves, and anchors what was not anchored yet', async () => {
    const admin = await Rest.login(address, account);
    const path = `/api/v1/telemetry/${devices[0]!.identity.device_id}`;
    const points = await waitUntil(
      async () => {
        const all = await admin.list<{ data_hash: string; anchored?: boolean }>(path, 'points', { page_size: 10_000 });
        return all.every((point) => point.anchored) ? all : undefined;
      },
      { what: 'the anchors of all points', timeoutMilliseconds: 90_000, intervalMilliseconds: 500 },
    );
    expect(points.map(({ data_hash }) => data_hash)).to.include.members(anchored);
    for (const hash of [anchored[0]!, points.at(-1)!.data_hash]) {
      const { bundle } = await admin.get<Proof>(`/api/v1/verify/hash/${hash}`, { include_bundle: true });
      const headers = join(folder, 'headers.txt');
      const bundleFile = join(folder, 'bundle.json');
      await writeFile(headers, await fetchHeadersFile(stack().info.devchain!, bundle!.block_header_chain[0]!.height));
      await writeFile(bundleFile, JSON.stringify(bundle));
      const { code, stdout, stderr } = await verifyOffline(bundleFile, '--headers', headers);
      expect(code, stdout + stderr).to.equal(0);
    }
  });
});
