// Mutated requests to every route: no server error, no undocumented status, no hang, no crash, no growth.
//
//   KELLET_FUZZ_REQUESTS  number of requests (the gate sends a few; `make fuzz` 20,000)
//   KELLET_FUZZ_SEED      seed, as printed in a report
//   KELLET_FUZZ_FIRST     first request: with KELLET_FUZZ_REQUESTS=1 repeats the request of a report
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { KelletClient } from '@kellet/client';
import { expect } from 'chai';
import { publicServices } from '../../apiserver/src/gateway/services.ts';
import { RouteTable } from '../../apiserver/src/gateway/transcoding/routes.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import type { FuzzCaller, Ids } from '../fuzz/corpus.ts';
import { documentedStatuses } from '../fuzz/judge.ts';
import { fuzz } from '../fuzz/run.ts';
import { makeSubject } from '../fuzz/subject.ts';

const count = Number(process.env['KELLET_FUZZ_REQUESTS'] ?? 1500);
const first = Number(process.env['KELLET_FUZZ_FIRST'] ?? 0);
const seed = Number(process.env['KELLET_FUZZ_SEED'] ?? 20_260_131);
const megabyte = 1024 * 1024;

/** Returns a gauge of the data plane's metrics. */
async function gauge(name: string): Promise<number> {
  const text = await (await fetch(`${stack().info.metrics}/metrics`)).text();
  const value = new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1];
  if (value === undefined) throw new Error(`no metric ${name}`);
  return Number(value);
}

/** Reports whether a credential is still valid. */
const isGood = (baseUrl: string, credential: string): Promise<boolean> =>
  new KelletClient({ baseUrl, credential }).get('/api/v1/openapi.json').then(
    () => true,
    () => false,
  );

/** Callers of each kind, most often the administrator; `renew` renews their credentials and tenant. */
async function makeCallers(): Promise<{ callers: FuzzCaller[]; ids: () => Ids; renew: () => Promise<void> }> {
  const { rest: baseUrl, platform } = stack().info;
  let subject = await makeSubject(stack().info);
  const tokens: Record<string, string> = {};
  const signIn = async (): Promise<void> => {
    for (const [name, account] of Object.entries({ admin: subject.admin, viewer: subject.viewer, platform })) {
      if (tokens[name] !== undefined && (await isGood(baseUrl, tokens[name]))) continue;
      const { email, password } = account;
      const open = new KelletClient({ baseUrl });
      tokens[name] = (await open.post('/api/v1/auth/login', { body: { email, password } })).access_token;
    }
  };
  // The fuzzer may also log out and delete its own test data.
  const renew = async (): Promise<void> => {
    if (!(await isGood(baseUrl, subject.deviceKey))) {
      subject = await makeSubject(stack().info);
      delete tokens['admin'];
      delete tokens['viewer'];
    }
    await signIn();
  };
  await signIn();
  const bearer = (name: string, token: () => string): FuzzCaller => ({
    name,
    headers: () => [['authorization', `Bearer ${token()}`]],
  });
  const callers = [
    ...['admin', 'admin', 'admin', 'admin', 'viewer', 'platform'].map((name) => bearer(name, () => tokens[name]!)),
    bearer('device', () => subject.deviceKey),
    bearer('device', () => subject.deviceKey),
    bearer('service', () => subject.serviceKey),
    { name: 'key in its header', headers: (): [string, string][] => [['x-api-key', subject.deviceKey]] },
    bearer('an unknown key', () => 'sk_live_nonsense'),
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
  return { callers, ids: () => subject.ids, renew };
}

describe('mutated requests', function () {
  this.timeout(60_000 + count * 50);

  it('get documented responses in time, without side effects on the server', async () => {
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
      ...(await makeCallers()),
    };
    const startedAt = await gauge('process_start_time_seconds');
    // The first half warms the server up; memory must not grow during the second.
    const half = Math.ceil(count / 2);
    const warm = await fuzz({ ...parts, first, requests: half });
    const before = await gauge('process_resident_memory_bytes');
    const rest = await fuzz({ ...parts, first: first + half, requests: count - half });
    const after = await gauge('process_resident_memory_bytes');

    const statuses: Record<string, number> = { ...warm.statuses };
    for (const [status, times] of Object.entries(rest.statuses)) statuses[status] = (statuses[status] ?? 0) + times;
    const grown = (after - before) / megabyte;
    console.log(
      `      ${warm.sent + rest.sent} requests from seed ${seed}: ${JSON.stringify(statuses)}; memory ${grown.toFixed(0)} MiB`,
    );
    expect([...warm.findings, ...rest.findings]).to.deep.equal([]);
    expect(await gauge('process_start_time_seconds'), 'the server was restarted').to.equal(startedAt);
    // Heap size fluctuates, but a leak of a few kilobytes per request would exceed this by far.
    expect(grown, 'MiB grown').to.be.below(150);
    if (count >= 1000) expect(Object.keys(statuses)).to.include.members(['200', '400', '401', '403', '404']);
  });
});
