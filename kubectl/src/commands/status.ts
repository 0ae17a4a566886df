// status: uses only the custom resources, so it works while the data plane is unavailable.
import { apiVersion, type OtaRollout } from '@kellet/crds';
import { customResources, type KubernetesObject } from '@kellet/kubernetes';
import { type Outcome, PluginError } from '../errors.ts';
import { follow } from '../follow.ts';
import { type Conditioned, resourceDetails, resourceHeadings, resourceRow } from '../format/resource.ts';
import { rolloutDetails, rolloutHeadings, rolloutLine, rolloutRow, type View } from '../format/rollout.ts';
import { formatTable } from '../format/table.ts';
import { formatValue, qualifiedName, shownObject } from '../output.ts';
import { Screen } from '../screen.ts';
import type { Session } from '../session.ts';
import { shownKinds, type StatusKind, statusTarget } from './status-target.ts';

type Resource = KubernetesObject & Conditioned;

/** Objects by kind. */
export type Resources = ReadonlyMap<StatusKind, readonly Resource[]>;

const newestFirst = (left: KubernetesObject, right: KubernetesObject): number =>
  (right.metadata.creationTimestamp ?? '').localeCompare(left.metadata.creationTimestamp ?? '') ||
  left.metadata.name.localeCompare(right.metadata.name);

/** Formats a table for each kind that has objects, rollouts first, newest first. */
export function statusTables(resources: Resources, isWide: boolean, { paint, now }: View): string {
  const tables: string[] = [];
  for (const kind of shownKinds) {
    const objects = [...(resources.get(kind) ?? [])].sort(newestFirst);
    if (objects.length === 0) continue;
    const [headings, rows] =
      kind === 'OtaRollout'
        ? [rolloutHeadings(isWide), objects.map((object) => rolloutRow(object as unknown as OtaRollout, isWide, now))]
        : [resourceHeadings(kind, isWide), objects.map((object) => resourceRow(kind, object, isWide, now))];
    const heading = `${kind.replace(/^Ota/, '').replace(/([a-z])([A-Z])/g, '$1 $2')}s`.toUpperCase();
    tables.push(`${resources.size > 1 ? `${paint('bold', heading)}\n` : ''}${formatTable(headings, rows, paint)}`);
  }
  return tables.join('\n');
}

/** Formats all details of an object. */
export const statusDetails = (kind: StatusKind, object: Resource, view: View): string =>
  `${(kind === 'OtaRollout' ? rolloutDetails(object as unknown as OtaRollout, view) : resourceDetails(kind, object, view)).join('\n')}\n`;

/** Runs the command. */
export async function runStatus(session: Session): Promise<Outcome> {
  const { line } = session;
  const target = statusTarget(line.args[0]);
  if (line.options.has('watch')) return watchStatus(session);
  const { cluster, terminal } = session;
  const format = session.option('output');
  if (target.name !== undefined) {
    const [kind] = target.kinds;
    const hint = `list them: kubectl kellet status all -n ${cluster.namespace}`;
    const object = await cluster.read<Resource>(kind, target.name, hint);
    if (format === 'json' || format === 'yaml') terminal.write(formatValue(shownObject(object), format));
    else if (format === 'name') terminal.write(`${qualifiedName(kind, object.metadata.name)}\n`);
    else terminal.write(statusDetails(kind, object, session.view()));
    return 'ok';
  }
  const lists = await Promise.all(
    target.kinds.map(async (kind) => {
      const { items } = await cluster.list<Resource>(customResources[kind]);
      // List items lack apiVersion and kind.
      return [kind, items.map((item) => ({ ...item, apiVersion, kind }))] as const;
    }),
  );
  const all = lists.flatMap(([, items]) => items);
  if (format === 'json' || format === 'yaml') {
    terminal.write(formatValue({ apiVersion: 'v1', kind: 'List', items: all.map(shownObject) }, format));
  } else if (format === 'name') {
    for (const { kind, metadata } of all) terminal.write(`${qualifiedName(kind, metadata.name)}\n`);
  } else if (all.length === 0) {
    terminal.say(`no Kellet resources found in namespace ${cluster.namespace}; use -n NAME for another one`);
  } else terminal.write(statusTables(new Map(lists), format === 'wide', session.view()));
  return 'ok';
}

/** Follows the selected objects until interrupted or, for a single rollout, until it ends. */
async function watchStatus(session: Session): Promise<Outcome> {
  const { cluster, terminal, line } = session;
  const target = statusTarget(line.args[0]);
  const format = session.option('output');
  const resources = new Map<StatusKind, readonly Resource[]>();
  const screen = new Screen(terminal);
  const over = new AbortController();
  const signal = AbortSignal.any([session.signal, over.signal]);
  const told = new Map<string, string>();
  let outcome: Outcome = 'ok';
  let hasSeen = false;

  const draw = (): void => {
    const view = session.view();
    const [kind] = target.kinds;
    const [object] = resources.get(kind) ?? [];
    const isSingle = target.name !== undefined;
    screen.draw(
      isSingle ? (object ? statusDetails(kind, object, view) : '') : statusTables(resources, format === 'wide', view),
    );
  };
  const tell = (kind: StatusKind, objects: readonly Resource[]): void => {
    for (const object of objects) {
      const isRollout = kind === 'OtaRollout';
      const plain = isRollout
        ? rolloutLine(object as unknown as OtaRollout)
        : resourceRow(kind, object, true, 0)
            .map((cell) => (typeof cell === 'string' ? cell : cell.text))
            .filter((_, index) => index !== 4)
            .join('  ')
            .trimEnd();
      const key = `${kind}/${object.metadata.name}`;
      const version = format === 'json' || format === 'yaml' ? (object.metadata.resourceVersion ?? '') : plain;
      if (told.get(key) === version) continue;
      told.set(key, version);
      if (format === 'json') terminal.write(`${JSON.stringify(shownObject(object))}\n`);
      else if (format === 'yaml') terminal.write(`---\n${formatValue(shownObject(object), 'yaml')}`);
      else if (format === 'name') terminal.write(`${qualifiedName(kind, object.metadata.name)}\n`);
      else terminal.write(`${plain}\n`);
    }
  };
  const isDrawn = terminal.isInteractive && (format === undefined || format === 'wide');
  const settle = (objects: readonly Resource[]): void => {
    if (target.name === undefined || target.kinds[0] !== 'OtaRollout') return;
    const [rollout] = objects as unknown as readonly (OtaRollout | undefined)[];
    if (!rollout) {
      if (!hasSeen)
        throw new PluginError('notFound', `rollout ${target.name} not found in namespace ${cluster.namespace}`);
      outcome = 'unsuccessful';
      terminal.say(`rollout ${target.name} was deleted`);
      over.abort();
    } else if (rollout.status?.phase === 'Completed') {
      outcome = rollout.status.outcome === 'Succeeded' ? 'ok' : 'unsuccessful';
      over.abort();
    }
    hasSeen = true;
  };

  const query = { fieldSelector: target.name && `metadata.name=${target.name}` };
  // Ages and soak times advance even if nothing changes.
  const clock = isDrawn ? setInterval(draw, 1000) : undefined;
  const follows = target.kinds.map((kind) =>
    follow<Resource>(cluster, customResources[kind], query, signal, {
      changed: (items) => {
        const objects = items.map((item) => ({ ...item, apiVersion, kind }));
        resources.set(kind, objects);
        if (isDrawn) draw();
        else tell(kind, objects);
        settle(objects);
      },
      interrupted: (error) => {
        screen.release();
        terminal.say(`${error.message}; retrying`);
      },
    }),
  );
  try {
    await Promise.all(follows);
  } finally {
    over.abort();
    clearInterval(clock);
    screen.release();
  }
  return outcome;
}
