// Status writes of a rollout under many reports: rate-limited, timely, and none without changes.
import { type OtaRollout } from '@kellet/crds';
import { customResources, KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { systemClock } from '../../operator/src/runtime/clock.ts';
import { createLogger } from '../../operator/src/runtime/logger.ts';
import { createMetrics } from '../../operator/src/runtime/metrics.ts';
import { Reflector } from '../../operator/src/runtime/reflector.ts';
import { admin, kubectl, makeFleet, makePackage, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

describe('status of a rollout', function () {
  this.timeout(60_000);
  let rest: Rest;
  let client: KubernetesClient;
  let stop: AbortController;
  let following: Promise<void>;
  /** Each version of the rollout reported by the watch, with its time. */
  let seen: { at: number; rollout: OtaRollout }[];
  let name: string;

  beforeEach(async () => {
    rest = await admin();
    name = unique('status');
    seen = [];
    stop = new AbortController();
    client = new KubernetesClient({ config: loadKubeConfig(stack().info.kubeconfig), userAgent: 'kellet-test' });
    const reflector = new Reflector<OtaRollout>({
      client,
      resource: customResources.OtaRollout,
      clock: systemClock,
      logger: createLogger('silent'),
      metrics: createMetrics(),
      onChange: ({ object }) => {
        if (object.metadata.name === name) seen.push({ at: performance.now(), rollout: object });
      },
    });
    following = reflector.run(stop.signal);
    await reflector.synced;
  });

  afterEach(async () => {
    stop.abort();
    await following;
    await client.close();
  });

  const last = () => seen.at(-1)?.rollout.status;
  const start = async (size: number, fields: object) => {
    const profile = await makeProfile(rest);
    const fleet = await makeFleet(rest, profile.profile_id, size);
    const compatibility = { device_type: profile.type };
    const { package_id } = await makePackage(rest, { version: '1.0.0', compatibility });
    const body = { package_id, target_profile_id: profile.profile_id, canary_percent: 100, name, ...fields };
    const { rollout_id } = await rest.post<Rollout>('/api/v1/ota/rollouts', body);
    await waitUntil(() => last()?.phase === 'Active', { what: 'the rollout is followed' });
    return { devices: fleet.devices, rollout_id };
  };
  const report = (device: SimulatedDevice, rollout_id: string, status: 'success' | 'failure') =>
    new Rest(rest.base, device.apiKey).post(`/api/v1/devices/${device.deviceId}/ota/report`, {
      ...{ device_id: device.deviceId, rollout_id, status },
      firmware_version: status === 'success' ? '1.0.0' : '0.9.0',
    });
  const reconciles = async (): Promise<number> => {
    const text = await (await fetch(`${stack().operatorMetrics}/metrics`)).text();
    const lines = text.matchAll(/controller_runtime_reconcile_total\{controller="otarollout",[^}]*\} (\d+)/g);
    return [...lines].reduce((sum, [, value]) => sum + Number(value), 0);
  };

  it('is written at most once a second, soon after the last report, and only on changes', async () => {
    const { devices, rollout_id } = await start(30, { failure_threshold_percent: 100 });
    await pause(1100);
    seen.length = 0;
    const from = await reconciles();
    for (const device of devices.slice(0, 29)) {
      await report(device, rollout_id, 'success');
      await pause(100);
    }
    const reported = performance.now();
    await waitUntil(() => last()?.counts?.succeeded === 29, {
      what: 'the last report in the status',
      intervalMilliseconds: 10,
    });
    expect(performance.now() - reported, 'soon').to.be.lessThan(2500);
    const gaps = seen.slice(1).map(({ at }, index) => at - seen[index]!.at);
    expect(seen.length).to.be.greaterThan(2);
    expect(Math.min(...gaps), `gaps ${gaps.map(Math.round).join(', ')}`).to.be.greaterThan(700);
    // A report may cause one reconcile, and a deferred status write another; a write must not cause one.
    expect((await reconciles()) - from).to.be.lessThan(29 * 2 + 10);

    const { length } = seen;
    const before = await reconciles();
    await pause(3000);
    expect(seen.length, 'no writes').to.equal(length);
    expect((await reconciles()) - before, 'no reconciles').to.be.lessThan(15);
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/cancel`);
  });

  it('has a condition and an event while a lowered percentage covers less than was scheduled', async () => {
    const { devices, rollout_id } = await start(4, { canary_percent: 50 });
    const { namespace = '' } = seen.at(-1)!.rollout.metadata;
    const patch = (canaryPercent: number) =>
      client.mergePatch(customResources.OtaRollout, namespace, name, { spec: { canaryPercent } });
    const lowered = () => last()?.conditions?.find(({ type }) => type === 'PercentLowered');
    await patch(25);
    await waitUntil(() => lowered()?.status === 'True', { what: 'the condition' });
    expect(lowered()!.message).to.contain('less than 50 %');
    await waitUntil(
      async () => {
        const selector = ['--field-selector', `involvedObject.name=${name},reason=PercentLowered`];
        return (await (await kubectl()).run(['get', 'events', '-n', namespace, ...selector, '-o', 'name'])) !== '';
      },
      { what: 'the event' },
    );
    type Shown = { device_id: string; state: string; progress_percent?: number };
    const list = () => rest.list<Shown>(`/api/v1/ota/rollouts/${rollout_id}/devices`, 'devices');
    expect(await list(), 'no device leaves the rollout').to.have.length(2);
    await patch(50);
    await waitUntil(() => last() !== undefined && lowered()?.status !== 'True', { what: 'its end' });

    // Progress is shown device by device.
    const [{ device_id: id }] = (await list()) as [Shown];
    const device = devices.find(({ deviceId }) => deviceId === id)!;
    const body = { device_id: id, rollout_id, progress_percent: 40 };
    await new Rest(rest.base, device.apiKey).post(`/api/v1/devices/${id}/ota/report`, body);
    const shown = (await list()).find((each) => each.device_id === id);
    expect(shown).to.include({ state: 'downloading', progress_percent: 40 });
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/cancel`);
  });

  it('reverts manual changes', async () => {
    const { rollout_id } = await start(1, {});
    const { namespace = '' } = seen.at(-1)!.rollout.metadata;
    const status = { phase: 'Completed', outcome: 'Succeeded' };
    await client.mergePatch(customResources.OtaRollout, namespace, name, { status }, { subresource: 'status' });
    await waitUntil(() => last()?.outcome === 'Succeeded', { what: 'the manual change' });
    await waitUntil(() => last()?.phase === 'Active' && last()?.outcome === undefined, {
      what: 'the restored status',
      timeoutMilliseconds: 20_000,
    });
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/cancel`);
  });

  it('shows an automatic pause and the effect of commands at once', async () => {
    const { devices, rollout_id } = await start(10, { failure_threshold_percent: 10 });
    await pause(1100);
    for (const device of devices.slice(0, 2)) await report(device, rollout_id, 'failure');
    const paused = performance.now();
    await waitUntil(() => last()?.phase === 'Paused', { what: 'the pause in the status', intervalMilliseconds: 10 });
    expect(performance.now() - paused).to.be.lessThan(2500);
    expect(last()!.pauseConditions!.map(({ reason }) => reason)).to.deep.equal(['FailureThresholdExceeded']);
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/resume`);
    await waitUntil(() => last()?.phase === 'Active' && last()?.control?.acknowledgedFailures === 2, {
      what: 'the resume and its acknowledged failures in the status',
    });
    const spec = JSON.stringify(seen.at(-1)!.rollout.spec);
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/retry`, { device_ids: [devices[0]!.deviceId] });
    await waitUntil(() => last()?.counts?.failed === 1, { what: 'the retry in the status' });
    await report(devices[0]!, rollout_id, 'failure');
    await waitUntil(() => last()?.counts?.failed === 2, { what: 'the new failure in the status' });
    expect(last()!.phase, 'one new failure of nine is 11 %').to.equal('Paused');
    expect(JSON.stringify(seen.at(-1)!.rollout.spec), 'no command changes spec').to.equal(spec);
    await rest.post(`/api/v1/ota/rollouts/${rollout_id}/cancel`);
    await waitUntil(() => last()?.phase === 'Completed' && last()?.outcome === 'Cancelled', {
      what: 'the cancellation in the status',
    });
  });
});
