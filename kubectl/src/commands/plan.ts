// plan: shows which devices a rollout would reach. Converts the manifest to an API request; the data plane makes the
// plan.
import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import type { DeviceProfile, OtaPackage, OtaRollout, OtaRolloutSpec } from '@kellet/crds';
import type { KubernetesObject } from '@kellet/kubernetes';
import { parseAllDocuments } from 'yaml';
import type { Cluster } from '../cluster.ts';
import { type Outcome, PluginError, usageError } from '../errors.ts';
import { formatDuration } from '../format/duration.ts';
import type { Paint } from '../format/paint.ts';
import { formatTable } from '../format/table.ts';
import { formatValue } from '../output.ts';
import { readRollout } from '../rollouts.ts';
import type { Session } from '../session.ts';

/** A plan as returned by the API. */
export interface Plan {
  readonly eligible: number;
  readonly steps: readonly { percent: number; scheduled: number; seconds: number; device_ids: readonly string[] }[];
  readonly excluded: readonly { device_id: string; reason: string }[];
  readonly excluded_counts: Readonly<Record<string, number>>;
  readonly seconds_from: string;
  readonly device_seconds: number;
  readonly history_rollout_ids: readonly string[];
}

/** Ids of the resources that a rollout refers to. */
export interface References {
  readonly packageId: string;
  readonly profileId: string;
  readonly rollbackPackageId?: string | undefined;
}

/** Converts a rollout's spec to the API's plan request: references by id, days by three letters, names in snake_case. */
export function planRequest(spec: OtaRolloutSpec, references: References): object {
  const {
    packageRef: _p,
    targetProfileRef: _t,
    rollbackPackageRef: _r,
    paused: _held,
    desiredState: _s,
    ...policy
  } = spec;
  const { window } = policy;
  const days = window?.days?.map((day) => day.slice(0, 3).toLowerCase());
  return {
    package_id: references.packageId,
    target_profile_id: references.profileId,
    ...(references.rollbackPackageId ? { rollback_package_id: references.rollbackPackageId } : {}),
    ...(toSnakeCase({ ...policy, ...(days && { window: { ...window, days } }) }) as object),
  };
}

/** Returns a copy of a JSON value with the names of all fields in snake_case. */
function toSnakeCase(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(toSnakeCase);
  if (typeof value !== 'object' || value === null) return value;
  const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [snake(name), toSnakeCase(field)]));
}

/** Returns the OtaRollout of a manifest. Throws PluginError if there is not exactly one. */
export function rolloutOfManifest(manifest: string, file: string): OtaRollout {
  const documents = parseAllDocuments(manifest);
  const wrong = documents.flatMap(({ errors }) => errors)[0];
  if (wrong) throw new PluginError('failed', `${file} is not valid YAML: ${wrong.message.split('\n')[0]}`);
  const objects = documents.map((document) => document.toJS() as Partial<OtaRollout> | null);
  const rollouts = objects.filter((object): object is OtaRollout => object?.kind === 'OtaRollout');
  if (rollouts.length !== 1) {
    throw new PluginError(
      'failed',
      `${file} contains ${rollouts.length || 'no'} OtaRollout${rollouts.length > 1 ? 's' : ''}; plan needs exactly one`,
    );
  }
  const [rollout] = rollouts as [OtaRollout];
  const { packageRef, targetProfileRef, canaryPercent } = (rollout.spec ?? {}) as Partial<OtaRolloutSpec>;
  if (!packageRef?.name || !targetProfileRef?.name || canaryPercent === undefined) {
    const hint = `to validate the manifest: kubectl apply --dry-run=server -f ${file}`;
    throw new PluginError('failed', `${file}: spec needs packageRef, targetProfileRef and canaryPercent`, hint);
  }
  return rollout;
}

/** Formats a plan as text. */
export function formatPlan(plan: Plan, paint: Paint): string {
  const rows = plan.steps.map(({ percent, scheduled, seconds, device_ids }, index) => {
    const before = index === 0 ? 0 : plan.steps[index - 1]!.scheduled;
    return [
      index === 0 ? 'canary' : String(index + 1),
      `${percent}%`,
      String(scheduled - before),
      String(scheduled),
      seconds === 0 ? 'at once' : formatDuration(seconds * 1000),
      device_ids.slice(0, 2).join(', ') + (scheduled - before > 2 ? ', …' : ''),
    ];
  });
  const isEstimate = plan.seconds_from === 'history';
  const when = isEstimate ? 'EXPECTED' : 'EARLIEST';
  const table = formatTable(['STEP', 'COVER', 'DEVICES', 'TOTAL', when, 'EXAMPLES'], rows, paint);
  const took = formatDuration(plan.device_seconds * 1000);
  const basis = isEstimate
    ? `\nexpected if a device takes ${took}, as in ${plan.history_rollout_ids.length} earlier rollouts\n`
    : '';
  const left = Object.entries(plan.excluded_counts).sort(([, a], [, b]) => b - a);
  const excluded = left.map(([reason, count]) => `  ${count} ${reason.replaceAll('_', ' ')}\n`).join('');
  return `${plan.eligible} devices are eligible\n\n${table}${basis}${excluded && `\nexcluded:\n${excluded}`}`;
}

async function idOf<T extends KubernetesObject>(
  cluster: Cluster,
  kind: 'OtaPackage' | 'DeviceProfile',
  name: string,
  read: (resource: T) => string | undefined,
): Promise<string> {
  const id = read(await cluster.read<T>(kind, name, 'apply it first: a plan uses the applied resources'));
  if (id) return id;
  const hint = `see: kubectl kellet status ${kind.toLowerCase()}/${name}`;
  throw new PluginError('precondition', `${kind} ${name} has not been applied to the data plane yet`, hint);
}

/** Runs the command. */
export async function runPlan(session: Session): Promise<Outcome> {
  const { cluster, line, terminal } = session;
  const file = session.option('filename');
  const [name] = line.args;
  if ((file === undefined) === (name === undefined)) throw usageError('plan needs either -f FILE or a ROLLOUT', 'plan');
  const { spec } =
    name === undefined ? rolloutOfManifest(await readManifest(file!), file!) : await readRollout(cluster, name);
  const packageId = (reference: { name: string }) =>
    idOf<OtaPackage>(cluster, 'OtaPackage', reference.name, ({ status }) => status?.packageId);
  const references = {
    packageId: await packageId(spec.packageRef),
    profileId: await idOf<DeviceProfile>(
      cluster,
      'DeviceProfile',
      spec.targetProfileRef.name,
      ({ status }) => status?.profileId,
    ),
    rollbackPackageId: spec.rollbackPackageRef && (await packageId(spec.rollbackPackageRef)),
  };
  const body = planRequest(spec, references);
  const plan = await session.dataPlane.call<Plan>('POST', 'ota/rollouts/plan', { body });
  const format = session.option('output');
  if (format === 'json' || format === 'yaml') terminal.write(formatValue(plan, format));
  else if (format === 'name')
    for (const id of plan.steps.flatMap(({ device_ids }) => device_ids)) terminal.write(`${id}\n`);
  else terminal.write(formatPlan(plan, session.view().paint));
  return 'ok';
}

async function readManifest(file: string): Promise<string> {
  try {
    return file === '-' ? await text(process.stdin) : await readFile(file, 'utf8');
  } catch (error) {
    throw new PluginError('failed', `${file} cannot be read: ${(error as Error).message}`);
  }
}
