// operator-10k: the operator with 10,000 custom resources of the four kinds, a tenth of them rollouts in different
// phases, on a complete stack: API server, etcd, PostgreSQL and data plane on the same machine. The result without a suffix
// is the first start: the time until all of them are applied.
//
//   KELLET_BENCH_RESOURCES   how many resources (10000)
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { get, type RequestOptions } from 'node:https';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { customResources, keyOf, keyText, KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import { type Stack, startStack } from '../../../dev/stack/stack.ts';
import { findCondition } from '../../../operator/src/conditions.ts';
import type { CustomResource } from '../../../operator/src/resources.ts';
import { systemClock } from '../../../operator/src/runtime/clock.ts';
import { createLogger } from '../../../operator/src/runtime/logger.ts';
import { createMetrics } from '../../../operator/src/runtime/metrics.ts';
import { Reflector } from '../../../operator/src/runtime/reflector.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { describeRound, format, median, type Result, resultOf, type Round, type Suite } from '../harness.ts';
import type { FollowerFigures } from './follower.ts';
import { createResources, describeResources, inParallel, shares } from './resources.ts';

const count = Number(process.env['KELLET_BENCH_RESOURCES'] ?? '10000');
const edits = 200;
const idleSeconds = 60;
const rounds = 3;

type Report = (line: string) => void;

/** The suite. */
export const operator10k: Suite = {
  name: 'operator-10k',
  run: async (report) => {
    const measured: Figure[][] = [];
    for (let number = 1; number <= rounds; number += 1) {
      report(`operator-10k: round ${number}/${rounds}`);
      measured.push(await measureRound(report));
    }
    return measured[0]!.map((figure, index) =>
      resultOf(
        figure,
        measured.map((figures) => figures[index]!.round),
      ),
    );
  },
};

/** A figure of one round. */
interface Figure extends Pick<Result, 'name' | 'unit' | 'baseline'> {
  readonly round: Round;
}

/** Measures on a new stack. */
async function measureRound(report: Report): Promise<Figure[]> {
  const stateFolder = join(import.meta.dirname, '../../../.kellet/bench-operator');
  const environment = { KELLET_REST_PORT: '0', KELLET_GRPC_PORT: '0', KELLET_CONTROL_PORT: '0' };
  const stack = await startStack({ stateFolder, fresh: true, environment, report });
  const config = loadKubeConfig(stack.info.kubeconfig);
  const client = new KubernetesClient({ config, userAgent: 'kellet-bench' });
  try {
    return await measure(stack, client, report);
  } finally {
    await client.close();
    await stack.stop();
  }
}

/** Reports whether the operator has processed the current generation of a resource. */
function isSettled(object: CustomResource): boolean {
  const ready = findCondition(object, 'Ready');
  if (!ready || ready.status === 'Unknown' || object.status?.observedGeneration !== object.metadata.generation)
    return false;
  return object.kind !== 'OtaRollout' || object.status?.phase !== undefined;
}

async function measure(stack: Stack, client: KubernetesClient, report: Report): Promise<Figure[]> {
  const say = (line: string): void => report(`operator-10k: ${line}`);
  const resources = await describeResources(stack, count);
  const all = [...resources.values()].flat();
  await stack.stopProcess('operator');
  const started = performance.now();
  await createResources(client, all);
  say(`created ${all.length} resources in ${format((performance.now() - started) / 1000)} s`);

  const stop = new AbortController();
  const watched = new Watched(client);
  const watching = watched.run(stop.signal);
  await watched.synced();
  const figures: Figure[] = [];
  const add = (suffix: string, unit: string, ours: number, baseline: string, than: number, remarks = {}): void => {
    const figure = { name: `operator-10k${suffix}`, unit, baseline, round: { ours, baseline: than, remarks } };
    figures.push(figure);
    say(`${figure.name}: ${describeRound(figure, figure.round)}`);
  };

  // First start: every resource is applied, every status written.
  const first = await untilSettled(stack, watched, all.length);
  const atFirst = await figuresOf(stack);
  const rawWrites = await timeWrites(client, watched.all());
  add('', 's', first / 1000, 'only one write of each', rawWrites / 1000, {
    'status writes per resource': atFirst.writes / all.length,
    'Events per resource': atFirst.events / all.length,
  });

  // Restart with everything in place: each resource is applied to the data plane once and nothing is written. The
  // writes above have triggered reconciles without changes.
  await waitForQuiet(stack);
  const beforeRestart = await figuresOf(stack);
  await stack.stopProcess('operator');
  const restarted = performance.now();
  await stack.startProcess('operator');
  const quiet = await waitForReconciles(stack, all.length, restarted);
  const restart = await figuresOf(stack);
  const follower = fork(join(import.meta.dirname, 'follower.ts'), [stack.info.kubeconfig]);
  const [{ listed }] = (await once(follower, 'message')) as [FollowerFigures];
  add('-restart', 's', quiet / 1000, 'only listing', listed / 1000, {
    'status writes': restart.writes - beforeRestart.writes,
  });

  // Idle.
  await sleep(5000);
  const before = await figuresOf(stack);
  const idle = await measureIdle(stack.info.pids['operator']!, follower);
  const after = await figuresOf(stack);
  add('-idle-cpu', 'ms/s', idle.ours, 'only watching', idle.baseline, {
    'status writes per minute': ((after.writes - before.writes) * 60) / idleSeconds,
    'reconciles per minute': ((after.reconciles - before.reconciles) * 60) / idleSeconds,
  });
  add(
    '-memory',
    'MB',
    residentMegabytes(stack.info.pids['operator']!),
    'only watching',
    residentMegabytes(follower.pid!),
  );
  follower.disconnect();

  // Sequential edits: time until the watch reports the status of the new generation.
  const beforeEdits = await figuresOf(stack);
  const latencies = await timeEdits(
    client,
    watched,
    all.filter(({ kind }) => kind === 'DeviceProfile'),
  );
  await sleep(1000);
  const afterEdits = await figuresOf(stack);
  add('-edit-p50', 'ms', median(latencies.effect), 'until a watch shows the edit', median(latencies.seen), {
    'status writes per edit': (afterEdits.writes - beforeEdits.writes) / edits,
  });
  const p99 = (values: readonly number[]): number => quantile(values, 0.99);
  add('-edit-p99', 'ms', p99(latencies.effect), 'until a watch shows the edit', p99(latencies.seen));

  // A thousand rollouts at once: each is edited and notified.
  const rollouts = all.filter((resource) => resource.kind === 'OtaRollout');
  const beforeBurst = await figuresOf(stack);
  const burst = performance.now();
  await inParallel(rollouts, 32, (rollout) =>
    client.mergePatch(customResources.OtaRollout, rollout.metadata.namespace!, rollout.metadata.name, {
      spec: { maxPerMinute: 100 },
    }),
  );
  const patched = performance.now() - burst;
  await watched.until((object) => object.kind !== 'OtaRollout' || isSettled(object));
  const settled = performance.now() - burst;
  await sleep(2000);
  const afterBurst = await figuresOf(stack);
  add('-rollouts', 's', settled / 1000, 'only the edits', patched / 1000, {
    'status writes per rollout': (afterBurst.writes - beforeBurst.writes) / rollouts.length,
    'reconciles per rollout': (afterBurst.reconciles - beforeBurst.reconciles) / rollouts.length,
  });
  stop.abort();
  await watching;
  return figures;
}

/** Watched copies of the resources. */
class Watched {
  private readonly reflectors: Reflector<CustomResource>[];
  private readonly listeners = new Set<(object: CustomResource) => void>();

  constructor(client: KubernetesClient) {
    this.reflectors = shares.map(
      ([kind]) =>
        new Reflector<CustomResource>({
          client,
          resource: customResources[kind],
          clock: systemClock,
          logger: createLogger('silent'),
          metrics: createMetrics(),
          onChange: ({ object }) => {
            for (const listener of this.listeners) listener(object);
          },
        }),
    );
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all(this.reflectors.map((reflector) => reflector.run(signal)));
  }

  async synced(): Promise<void> {
    await Promise.all(this.reflectors.map((reflector) => reflector.synced));
  }

  all(): CustomResource[] {
    return this.reflectors.flatMap((reflector) => [...reflector.values()]);
  }

  /** Resolves when the condition holds for every object. */
  async until(holds: (object: CustomResource) => boolean): Promise<void> {
    const id = (object: CustomResource): string => `${object.kind} ${keyText(keyOf(object))}`;
    const open = new Set(this.all().flatMap((object) => (holds(object) ? [] : [id(object)])));
    if (open.size === 0) return;
    await new Promise<void>((resolve) => {
      const listener = (object: CustomResource): void => {
        if (holds(object)) open.delete(id(object));
        else open.add(id(object));
        if (open.size > 0) return;
        this.listeners.delete(listener);
        resolve();
      };
      this.listeners.add(listener);
    });
  }

  /** Resolves when the condition holds for an object reported from now on. */
  async next(holds: (object: CustomResource) => boolean): Promise<void> {
    await new Promise<void>((resolve) => {
      const listener = (object: CustomResource): void => {
        if (!holds(object)) return;
        this.listeners.delete(listener);
        resolve();
      };
      this.listeners.add(listener);
    });
  }
}

/** Returns the milliseconds from the operator's start until everything is settled. */
async function untilSettled(stack: Stack, watched: Watched, expected: number): Promise<number> {
  const present = watched.all().length;
  if (present < expected) throw new Error(`only ${present} of ${expected} resources exist`);
  const started = performance.now();
  const settled = watched.until(isSettled);
  await stack.startProcess('operator');
  await settled;
  return performance.now() - started;
}

/** Returns the milliseconds from `started` until this many reconciles are done and none is queued. */
async function waitForReconciles(stack: Stack, reconciles: number, started: number): Promise<number> {
  for (;;) {
    const metrics = await figuresOf(stack);
    if (metrics.reconciles >= reconciles && metrics.depth === 0) return performance.now() - started;
    await sleep(50);
  }
}

/** Waits until the operator is nearly idle. */
async function waitForQuiet(stack: Stack): Promise<void> {
  for (let before = -Infinity; ;) {
    const { reconciles, depth } = await figuresOf(stack);
    if (depth === 0 && reconciles - before < count / 200) return;
    before = reconciles;
    await sleep(1500);
  }
}

/**
 * Returns the milliseconds for one write of each object, with as many concurrent writes as the operator has workers.
 */
async function timeWrites(client: KubernetesClient, objects: readonly CustomResource[]): Promise<number> {
  const started = performance.now();
  await inParallel(objects, 32, ({ kind, metadata: { name, namespace = '' } }) =>
    client.mergePatch(customResources[kind], namespace, name, { metadata: { annotations: { bench: 'measured' } } }),
  );
  return performance.now() - started;
}

/**
 * Edits spread over the profiles: milliseconds until a watch shows the edit, and until it shows that it took effect.
 */
async function timeEdits(client: KubernetesClient, watched: Watched, profiles: readonly CustomResource[]) {
  const latencies = { seen: [] as number[], effect: [] as number[] };
  for (let index = 0; index < edits; index += 1) {
    const { name, namespace = '' } = profiles[Math.floor((index * profiles.length) / edits)]!.metadata;
    const of = (object: CustomResource): boolean =>
      object.kind === 'DeviceProfile' &&
      object.metadata.name === name &&
      object.spec.defaultTags?.['edit'] === `${index}`;
    const started = performance.now();
    const seen = watched.next(of).then(() => latencies.seen.push(performance.now() - started));
    const effect = watched
      .next((object) => of(object) && isSettled(object))
      .then(() => latencies.effect.push(performance.now() - started));
    const spec = { defaultTags: { edit: `${index}` } };
    await client.mergePatch(customResources.DeviceProfile, namespace, name, { spec });
    await Promise.all([seen, effect]);
  }
  return latencies;
}

/** Returns the CPU milliseconds per second of the idle operator, and of a process that only watches. */
async function measureIdle(operator: number, follower: ChildProcess): Promise<{ ours: number; baseline: number }> {
  const read = (): [number, number] => [cpuMicroseconds(operator), cpuMicroseconds(follower.pid!)];
  const [ours, baseline] = read();
  await sleep(idleSeconds * 1000);
  const [oursAfter, baselineAfter] = read();
  const perSecond = (from: number, to: number): number => (to - from) / 1000 / idleSeconds;
  // CPU time is measured in hundredths of a second: less than one tick counts as one.
  return { ours: perSecond(ours, oursAfter), baseline: Math.max(perSecond(baseline, baselineAfter), 10 / idleSeconds) };
}

function residentMegabytes(pid: number): number {
  const kilobytes = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]!;
  return Number(kilobytes) / 1024;
}

interface Figures {
  /** Status writes, as counted by the API server. */
  writes: number;
  /** Event writes, as counted by the API server. */
  events: number;
  /** Reconciles since the operator started. */
  reconciles: number;
  /** Keys in the operator's queues. */
  depth: number;
}

async function figuresOf(stack: Stack): Promise<Figures> {
  const [server, operator] = await Promise.all([
    apiServerMetrics(stack),
    fetch(`${stack.operatorMetrics}/metrics`).then((response) => response.text()),
  ]);
  const sum = (text: string, pattern: RegExp): number =>
    [...text.matchAll(pattern)].reduce((total, [, value]) => total + Number(value), 0);
  const wrote = String.raw`\{[^}]*?verb="(?:APPLY|PATCH|PUT|POST)"[^}]*\} ([\d.e+]+)`;
  const requests = (labels: string): number => {
    const lines = server
      .split('\n')
      .filter((line) => line.startsWith('apiserver_request_total{') && line.includes(labels));
    return sum(lines.join('\n'), new RegExp(wrote, 'g'));
  };
  return {
    writes: requests('subresource="status"'),
    events: requests('resource="events"'),
    reconciles: sum(operator, /controller_runtime_reconcile_total\{[^}]*\} (\d+)/g),
    depth: sum(operator, /workqueue_depth\{[^}]*\} (\d+)/g),
  };
}

async function apiServerMetrics(stack: Stack): Promise<string> {
  const config = loadKubeConfig(stack.info.kubeconfig);
  const options: RequestOptions = {};
  await config.applyToHTTPSOptions(options);
  const request = get(new URL('/metrics', config.getCurrentCluster()!.server), { ...options, agent: false });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  let text = '';
  for await (const chunk of response.setEncoding('utf8')) text += chunk as string;
  return text;
}

function quantile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!;
}
