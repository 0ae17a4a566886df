// Mutated requests to every route: no server error, no undocumented status, no hang, no crash, no growth.
//
//   KELLET_FUZZ_REQUESTS  how many (the gate sends a few; `make fuzz` 20,000)
//   KELLET_FUZZ_SEED      which ones; a report names it
//   KELLET_FUZZ_FIRST     from which number on: with KELLET_FUZZ_REQUESTS=1 the request of a report alone
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { KelletClient } from '@kellet/client';
import { expect } from 'chai';
import { RouteTable } from '../../apiserver/src/gateway/routes.ts';
import { publicServices } from '../../apiserver/src/gateway/services.ts';
import type { FuzzCaller, Ids } from '../fuzz/corpus.ts';
import { documentedStatuses } from '../fuzz/judge.ts';
import { fuzz } from '../fuzz/run.ts';
import { unique } from '../src/fixtures.ts';
import { stack } from '../stack/test-stack.ts';

const count = Number(process.env['KELLET_FUZZ_REQUESTS'] ?? 1500);
const first = Number(process.env['KELLET_FUZZ_FIRST'] ?? 0);
const seed = Number(process.env['KELLET_FUZZ_SEED'] ?? 20_260_131);
const megabyte = 1024 * 1024;

/** A gauge of the data plane's metrics page. */
async function gauge(name: string): Promise<number> {
  const text = await (await fetch(`${stack().info.metrics}/metrics`)).text();
  const value = new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1];
  if (value === undefined) throw new Error(`no metric ${name}`);
  return Number(value);
}

/** A tenant of its own, with one of each thing, and a caller of each kind. */
async function prepare(): Promise<{ ids: Ids; callers: FuzzCaller[]; between: () => Promise<void> }> {
  const { rest: baseUrl, platform } = stack().info;
  const tenant_id = unique('fuzz');
  const account = { email: `admin@${tenant_id}.test`, password: 'a first long password' };
  const owner = await KelletClient.signIn({ baseUrl }, platform);
  await owner.post('/api/v1/tenants', {
    body: {
      tenant_id,
      rate_limit_per_minute: 10_000_000,
      admin_email: account.email,
      admin_password: account.password,
    },
  });
  const admin = await KelletClient.signIn({ baseUrl }, account);
  const { profile_id } = await admin.post('/api/v1/profiles', { body: { name: 'fuzz', type: 'fuzz' } });
  const template = await admin.post('/api/v1/provisioning/templates', { body: { name: 'fuzz', profile_id } });
  const device = await new KelletClient({ baseUrl }).post('/api/v1/provision', {
    body: { provision_key: template.provision_key ?? '', device_name: 'fuzz', hardware_id: 'fuzz' },
  });
  const second = await admin.post('/api/v1/devices', { body: { hardware_id: 'second', profile_id } });
  const group = await admin.post('/api/v1/device-groups', { body: { name: 'fuzz' } });
  const command = await admin.post('/api/v1/devices/{device_id}/rpc', {
    params: { path: { device_id: device.device_id } },
    body: { method: 'blink' },
  });
  const service = await admin.post('/api/v1/auth/api-keys', {
    body: { name: 'fuzz', scopes: ['devices:write', 'devices:read', 'telemetry:read', 'rpc:write', 'rpc:read'] },
  });
  const viewer = { email: `viewer@${tenant_id}.test`, password: 'a second long password' };
  await admin.post('/api/v1/auth/users', { body: { ...viewer, role: 'viewer' } });

  const accounts = { admin: account, viewer, platform };
  const tokens: Record<string, string> = {};
  // A fuzzer logs out, too: whoever has lost the session signs in again.
  const between = async (): Promise<void> => {
    for (const [name, { email, password }] of Object.entries(accounts)) {
      const client = new KelletClient({ baseUrl, credential: tokens[name] ?? '' });
      const isGood = await client.get('/api/v1/auth/sessions').then(
        () => true,
        () => false,
      );
      if (isGood) continue;
      const open = new KelletClient({ baseUrl });
      tokens[name] = (await open.post('/api/v1/auth/login', { body: { email, password } })).access_token;
    }
  };
  await between();
  const bearer = (name: string, token: () => string): FuzzCaller => ({
    name,
    headers: () => [['authorization', `Bearer ${token()}`]],
  });
  const callers = [
    ...['admin', 'admin', 'admin', 'admin', 'viewer', 'platform'].map((name) => bearer(name, () => tokens[name]!)),
    bearer('device', () => device.api_key),
    bearer('device', () => device.api_key),
    bearer('service', () => service.api_key ?? ''),
    { name: 'key in its header', headers: (): [string, string][] => [['x-api-key', device.api_key]] },
    bearer('nobody', () => 'sk_live_nonsense'),
    bearer('a forged token', () => `${tokens['admin']!.slice(0, -4)}AAAA`),
    {
      name: 'two credentials',
      headers: (): [string, string][] => [
        ['authorization', 'Basic eDp5'],
        ['x-api-key', 'x'],
      ],
    },
    { name: 'no credential', headers: () => [] },
  ];
  const ids = {
    device_id: [device.device_id, second.device?.device_id ?? '', 'unknown'],
    gateway_device_id: [device.device_id, 'unknown'],
    profile_id: [profile_id, 'unknown'],
    target_profile_id: [profile_id],
    template_id: [template.template_id, 'unknown'],
    group_id: [group.group_id, 'unknown'],
    correlation_id: [command.correlation_id, 'unknown'],
    data_hash_hex: ['0'.repeat(64), 'zz'],
    provision_key: [template.provision_key ?? ''],
  };
  return { ids, callers, between };
}

describe('mutated requests', function () {
  this.timeout(60_000 + count * 50);

  it(`are answered as the document says (${count} from seed ${seed})`, async () => {
    const { hostname, port } = new URL(stack().info.rest);
    const document = JSON.parse(
      readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json')), 'utf8'),
    ) as Parameters<typeof documentedStatuses>[0];
    const parts = {
      host: hostname,
      port: Number(port),
      seed,
      patience: 10_000,
      routes: new RouteTable(publicServices),
      documented: documentedStatuses(document),
      ...(await prepare()),
    };
    const startedAt = await gauge('process_start_time_seconds');
    // The first half warms the server up; the second must not make it grow.
    const half = Math.ceil(count / 2);
    const warm = await fuzz({ ...parts, first, requests: half });
    const before = await gauge('process_resident_memory_bytes');
    const rest = await fuzz({ ...parts, first: first + half, requests: count - half });
    const after = await gauge('process_resident_memory_bytes');

    const statuses: Record<string, number> = { ...warm.statuses };
    for (const [status, times] of Object.entries(rest.statuses)) statuses[status] = (statuses[status] ?? 0) + times;
    const grown = (after - before) / megabyte;
    console.log(`      ${warm.sent + rest.sent} requests: ${JSON.stringify(statuses)}; memory ${grown.toFixed(0)} MiB`);
    expect([...warm.findings, ...rest.findings]).to.deep.equal([]);
    expect(await gauge('process_start_time_seconds'), 'the server was started again').to.equal(startedAt);
    // Heaps breathe; a leak of a few kilobytes a request would show as much more in a long run.
    expect(grown, 'MiB grown').to.be.below(150);
    if (count >= 1000) expect(Object.keys(statuses)).to.include.members(['200', '400', '401', '403', '404']);
  });
});
