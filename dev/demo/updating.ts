// e and f: a successful rollout, and one that pauses itself.
import { join } from 'node:path';
import { followEvents } from '../clients/broker-events.ts';
import { checkout } from '../stack/paths.ts';
import { waitUntil } from '../stack/wait.ts';
import { canarySize, fleetSize, type Scene } from './scene.ts';

interface RolloutStatus {
  rolloutId: string;
  phase: string;
  outcome?: string;
  counts: { scheduled: number; succeeded: number; failed: number; sent: number };
  pauseConditions?: { reason: string }[];
}

const healthy = 'weather-station-1.1.0';
const failing = 'weather-station-1.2.0';

async function statusOf(scene: Scene, name: string): Promise<RolloutStatus> {
  const { status } = await scene.kubectl.json<{ status?: Partial<RolloutStatus> }>(['get', 'otaro', name]);
  const counts = { scheduled: 0, succeeded: 0, failed: 0, sent: 0, ...status?.counts };
  return { rolloutId: '', phase: '', ...status, counts };
}

/** Polls the status until the condition holds or the time is up. Returns the last status. */
async function waitStatus(
  scene: Scene,
  name: string,
  what: string,
  holds: (status: RolloutStatus) => boolean,
  seconds = 40,
): Promise<RolloutStatus> {
  let status = await statusOf(scene, name);
  const check = async () => {
    status = await statusOf(scene, name);
    return holds(status);
  };
  await waitUntil(check, { what, timeoutMilliseconds: seconds * 1000, intervalMilliseconds: 300 }).catch(
    () => undefined,
  );
  return status;
}

async function applyRollout(scene: Scene, name: string): Promise<void> {
  const path = `examples/rollouts/${name}.yaml`;
  scene.terminal.say(`   $ kubectl apply -n ${scene.kubectl.namespace} -f ${path}`);
  scene.terminal.print(await scene.kubectl.run(['apply', '-f', join(checkout, path)]));
}

/** Returns the devices that received the command for this version. */
const reached = (scene: Scene, version: string) =>
  scene.fleet.devices.filter(({ updates }) => updates.some((update) => update.version === version));
const running = (scene: Scene, version: string) =>
  scene.fleet.devices.filter((device) => device.firmwareVersion === version).length;

/** e. A canary, then all devices. */
export async function updateFleet(scene: Scene): Promise<void> {
  const { terminal, promises, kubectl, admin } = scene;
  terminal.chapter('e', 'Firmware 1.1.0 rolls out to a 20 % canary, then to all devices');
  await applyRollout(scene, healthy);
  const isCanaryDone = ({ counts }: RolloutStatus) => counts.succeeded >= canarySize;
  const canary = await waitStatus(scene, healthy, 'the canary', (status) => {
    terminal.count('updated', status.counts.succeeded, canarySize);
    return isCanaryDone(status);
  });
  const commanded = reached(scene, '1.1.0').length;
  const isTenth = canary.counts.scheduled === canarySize && commanded === canarySize && canary.phase === 'Active';
  promises.observe('canary', isTenth, `${canary.counts.scheduled} scheduled, ${commanded} of ${fleetSize} commanded`);
  const cut = reached(scene, '1.1.0').reduce((total, { updates }) => total + updates[0]!.interruptions, 0);
  const isAll = canary.counts.succeeded === canarySize && canary.counts.failed === 0 && cut > 0;
  promises.observe(
    'canarySucceeds',
    isAll,
    `${canary.counts.succeeded} of ${canarySize}, cut and resumed ${cut} times`,
  );

  const patch = '{"spec":{"canaryPercent":100}}';
  terminal.say(`   $ kubectl patch -n ${kubectl.namespace} otaro ${healthy} --type merge -p '${patch}'`);
  terminal.print(await kubectl.run(['patch', 'otaro', healthy, '--type', 'merge', '--patch', patch]));
  const done = await waitStatus(scene, healthy, 'the rollout', (status) => {
    terminal.count('updated', status.counts.succeeded, fleetSize);
    return status.phase === 'Completed';
  });
  const devices = await admin.list<{ firmware_version?: string }>('/api/v1/devices', 'devices', { page_size: 500 });
  const updated = devices.filter(({ firmware_version }) => firmware_version === '1.1.0').length;
  const isCompleted = done.phase === 'Completed' && done.outcome === 'Succeeded' && updated === fleetSize;
  promises.observe('completed', isCompleted, `${done.phase}, ${updated} of ${fleetSize} devices run 1.1.0`);
  terminal.say(`   ${done.phase}: ${updated} of ${fleetSize} devices run 1.1.0`);
}

/** f. A firmware on which most devices fail. */
export async function stopBadFirmware(scene: Scene): Promise<void> {
  const { terminal, promises, admin, tenant } = scene;
  terminal.chapter('f', 'Firmware 1.2.0 fails on most devices');
  const alerts = await followEvents(scene.natsUrl, `profile.ota.rollout.paused.${tenant}.*`);
  try {
    await applyRollout(scene, failing);
    const paused = await waitStatus(scene, failing, 'the pause', ({ phase }) => phase === 'Paused');
    const reasons = (paused.pauseConditions ?? []).map(({ reason }) => reason).join();
    const isPaused = paused.phase === 'Paused' && reasons === 'FailureThresholdExceeded';
    const { failed, scheduled } = paused.counts;
    promises.observe('paused', isPaused, `${paused.phase}: ${reasons}, ${failed} of ${scheduled} failed`);
    terminal.say(`   ${paused.phase}: ${failed} of ${scheduled} failed (${reasons})`);

    const subject = `profile.ota.rollout.paused.${tenant}.${paused.rolloutId}`;
    const alert = await waitUntil(() => alerts.received.find((event) => event.subject === subject), {
      what: 'the alert',
      timeoutMilliseconds: 5000,
    }).catch(() => undefined);
    promises.observe('alert', alert?.data.tenantid === tenant, alert ? `${alert.subject.slice(0, 44)}…` : 'no event');
    terminal.say(`   on the broker: ${alert?.subject ?? 'nothing'}`);

    terminal.say(`   POST /api/v1/ota/rollouts/${paused.rolloutId}/rollback`);
    await admin.post(`/api/v1/ota/rollouts/${paused.rolloutId}/rollback`);
    const back = await waitStatus(scene, failing, 'the rollback', ({ phase }) => phase === 'Completed');
    const commanded = reached(scene, '1.2.0').length;
    const isNobodyElse = back.counts.scheduled === canarySize && commanded <= canarySize;
    promises.observe('nobodyElse', isNobodyElse, `${back.counts.scheduled} scheduled, ${commanded} commanded`);
    const onOld = running(scene, '1.1.0');
    const isBack = back.phase === 'Completed' && back.outcome === 'RolledBack' && onOld === fleetSize;
    promises.observe('rollback', isBack, `${back.phase} (${back.outcome}), ${onOld} of ${fleetSize} run 1.1.0`);
    terminal.say(`   ${back.phase} (${back.outcome}): ${onOld} of ${fleetSize} devices run 1.1.0`);
  } finally {
    await alerts.close();
  }
}

/** g. Lists the resources. */
export async function listResources(scene: Scene): Promise<void> {
  const { terminal, promises, kubectl } = scene;
  terminal.chapter('g', 'What kubectl shows');
  terminal.say(`   $ kubectl get -n ${kubectl.namespace} dprof,ptmpl,otapkg,otaro`);
  const text = await kubectl.run(['get', 'dprof,ptmpl,otapkg,otaro']);
  terminal.print(text);
  const rows = text
    .split('\n')
    .filter((line) => /^(deviceprofile|provisioningtemplate|otapackage|otarollout)s?\./.test(line));
  promises.observe('listed', rows.length === 6, `${rows.length} of 6 resources`);
}
