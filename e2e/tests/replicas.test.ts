// Two gateways, two processes that take points, two that anchor, and two operators at once: limits hold across them, nothing is
// anchored twice, and another takes over when one stops or freezes.
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import { checkout } from '../../dev/stack/paths.ts';
import { findFreePorts } from '../../dev/stack/ports/free-ports.ts';
import type { TargetPorts } from '../../dev/stack/stack.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { kubectl, makeProfile, platformAdmin, unique } from '../testing/fixtures.ts';

const execute = promisify(execFile);
const pairs = ['a', 'b'] as const;
const devices = 10;
const points = 700;

describe('two replicas of everything', function () {
  this.timeout(180_000);
  const tenantId = unique('replicas');
  const account = { email: `admin@${tenantId}.test`, password: randomBytes(18).toString('base64url') };
  const started: `target-${string}`[] = [];
  /** The administrator's client through each gateway. */
  let rests: Rest[];
  let platform: Rest;
  let operator: ChildProcess | undefined;

  const start = async (name: `target-${string}`, target: string, settings: Record<string, string> = {}) => {
    started.push(name);
    return stack().startTarget(name, target, settings);
  };
  const sql = async (text: string) =>
    (
      await execute('psql', ['--no-psqlrc', '--tuples-only', '--no-align', '--command', text, stack().info.databaseUrl])
    ).stdout.trim();

  before(async () => {
    platform = await platformAdmin();
    await platform.post('/api/v1/tenants', {
      ...{ tenant_id: tenantId, name: 'Replicas', admin_email: account.email, admin_password: account.password },
      quotas: { devices, points_per_day: points },
    });
    const gateways: TargetPorts[] = [];
    for (const pair of pairs) {
      const telemetry = await start(`target-replica-telemetry-${pair}`, 'telemetry');
      await start(`target-replica-anchor-${pair}`, 'chain-anchor');
      gateways.push(
        await start(`target-replica-gateway-${pair}`, 'gateway', {
          KELLET_SERVICE_ADDRESSES: `telemetry=${telemetry.control},*=${stack().control}`,
          KELLET_JWT_PRIVATE_KEY_FILE: '',
        }),
      );
    }
    rests = await Promise.all(gateways.map(({ rest }) => Rest.login(rest, account)));
  });
  after(async () => {
    if (operator?.exitCode === null) {
      const ended = once(operator, 'exit');
      // Releases the lease, so that the stack's own operator need not wait for its end.
      operator.kill('SIGTERM');
      await ended;
    }
    for (const name of started.toReversed()) await stack().stopProcess(name);
    await platform?.delete(`/api/v1/tenants/${tenantId}`);
  });

  /** The keys of the devices, which may send through either gateway. */
  const keys: { deviceId: string; key: string }[] = [];

  it('create exactly as many devices as the quota allows, whichever gateway is asked', async () => {
    const { profile_id } = await makeProfile(rests[0]!);
    const made = await Promise.all(
      Array.from({ length: 3 * devices }, async (_, index) => {
        const body = { hardware_id: unique('replica'), profile_id };
        return rests[index % 2]!.send<{ device: { device_id: string }; api_key: string }>('POST', '/api/v1/devices', {
          body,
        });
      }),
    );
    for (const { status, body } of made) {
      if (status === 200) keys.push({ deviceId: body.device.device_id, key: body.api_key });
      else expect(status).to.equal(429);
    }
    expect(keys).to.have.length(devices);
  });

  it('accept exactly as many points as the quota allows, through both', async () => {
    let accepted = 0;
    let time = Date.now() - 3_600_000;
    const send = async (index: number) => {
      const { deviceId, key } = keys[index % devices]!;
      const batch = Array.from({ length: 30 }, () => ({
        device_id: deviceId,
        timestamp: new Date((time += 10)).toISOString(),
        numeric_values: { level: time },
      }));
      const gateway = new Rest(rests[index % 2]!.base, key);
      const { status, body } = await gateway.send<{ accepted: number }>('POST', '/api/v1/telemetry', {
        body: { points: batch },
      });
      expect([200, 429]).to.include(status);
      accepted += status === 200 ? body.accepted : 0;
    };
    // What one process holds in reserve is refused by the other until it is returned, so the rest may need another try.
    await waitUntil(
      async () => {
        await Promise.all(Array.from({ length: 20 }, (_, index) => send(index)));
        return accepted >= points;
      },
      { what: 'the use of the whole quota', timeoutMilliseconds: 60_000, intervalMilliseconds: 1000 },
    );
    expect(accepted).to.equal(points);
  });

  it('anchor every point once, with one transaction for each batch', async () => {
    await waitUntil(
      async () =>
        (await sql(
          `SELECT count(*) = 0 FROM anchor_batches WHERE tenant_id = '${tenantId}' AND status <> 'confirmed'`,
        )) === 't',
      { what: 'the confirmation of all batches', timeoutMilliseconds: 90_000, intervalMilliseconds: 500 },
    );
    const own = `SELECT count(*), count(DISTINCT (device_id, time)) FROM telemetry_points WHERE tenant_id = '${tenantId}'
      AND device_id IN (${keys.map(({ deviceId }) => `'${deviceId}'`).join(', ')})`;
    expect(await sql(own)).to.equal(`${points}|${points}`);
    const mined = `SELECT count(*) FROM (SELECT batch_id FROM chain_transactions JOIN anchor_batches USING (batch_id)
      WHERE tenant_id = '${tenantId}' AND state IN ('mined', 'final') GROUP BY batch_id HAVING count(*) > 1) AS twice`;
    expect(await sql(mined)).to.equal('0');
    const inTwo = `SELECT count(*) FROM (SELECT data_hash FROM telemetry_points WHERE tenant_id = '${tenantId}'
      GROUP BY device_id, time, data_hash HAVING count(DISTINCT batch_id) > 1) AS twice`;
    expect(await sql(inTwo)).to.equal('0');
  });

  it('go on when one of each stops: tokens are accepted, points are there, and the other serves both', async () => {
    for (const target of ['gateway', 'telemetry', 'anchor']) {
      const name = `target-replica-${target}-a` as const;
      started.splice(started.indexOf(name), 1);
      await stack().stopProcess(name);
    }
    const survivor = rests[1]!;
    const other = new Rest(survivor.base, rests[0]!.token);
    const { devices: found } = await other.client.get('/api/v1/devices', { params: { query: { page_size: 100 } } });
    expect(found).to.have.length(devices);
    let count = 0;
    for (const { deviceId } of keys) {
      count += (await survivor.list(`/api/v1/telemetry/${deviceId}`, 'points', { page_size: 1000 })).length;
    }
    expect(count).to.equal(points);
  });

  it('apply manifests when the leading operator freezes, and never both at once', async () => {
    const secrets = join(dirname(stack().infoPath), 'secrets');
    const { metrics } = await findFreePorts('metrics');
    operator = spawn(process.execPath, [join(checkout, 'operator/src/main.ts')], {
      stdio: 'ignore',
      env: {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KUBECONFIG: join(secrets, 'operator.kubeconfig'),
        KELLET_CONTROL_ADDRESS: stack().control,
        KELLET_CONTROL_SECRET_FILE: join(secrets, 'control-secret'),
        KELLET_METRICS_PORT: String(metrics),
        KELLET_LISTEN_HOST: '127.0.0.1',
        KELLET_LEASE_NAMESPACE: 'kellet-system',
        KELLET_IDENTITY: 'second',
      },
    });
    const leads = async (base: string) =>
      /leader_election_master_status\{[^}]*\} 1/.test(
        await fetch(`${base}/metrics`).then(
          (response) => response.text(),
          () => '',
        ),
      );
    const second = `http://127.0.0.1:${metrics}`;
    await waitUntil(async () => (await fetch(`${second}/healthz`).catch(() => undefined))?.ok, {
      what: 'the second operator',
      timeoutMilliseconds: 30_000,
    });
    expect(await leads(stack().operatorMetrics)).to.equal(true);
    expect(await leads(second)).to.equal(false);
    stack().signal('operator', 'SIGSTOP');
    try {
      await waitUntil(() => leads(second), { what: 'the second operator’s lead', timeoutMilliseconds: 60_000 });
      const kube = await kubectl();
      const name = unique('after-takeover');
      await kube.apply({
        apiVersion: 'kellet.dev/v1alpha1',
        kind: 'DeviceProfile',
        metadata: { name },
        spec: { type: 'x' },
      });
      await kube.wait(`deviceprofile/${name}`, 'condition=Ready', 60);
    } finally {
      stack().signal('operator', 'SIGCONT');
    }
    // The one that was frozen notices that it leads no longer.
    await waitUntil(async () => !(await leads(stack().operatorMetrics)) || !(await leads(second)), {
      what: 'one leader',
      timeoutMilliseconds: 30_000,
    });
  });
});
