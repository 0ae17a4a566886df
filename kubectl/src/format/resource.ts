// Formats kinds other than rollouts, as table rows and details.
import type { Condition, DeviceProfile, OtaPackage, ProvisioningTemplate } from '@kellet/crds';
import { formatAge, formatBytes } from './duration.ts';
import type { View } from './rollout.ts';
import type { Cell } from './table.ts';

/** A resource with conditions. */
export interface Conditioned {
  readonly kind: string;
  readonly metadata: { readonly name: string; readonly creationTimestamp?: string; readonly generation?: number };
  readonly status?: { readonly observedGeneration?: number; readonly conditions?: readonly Condition[] };
}

/** Returns the state of Ready, and the reason if it is not True. */
export function readiness({ metadata, status }: Conditioned): { cell: Cell; message: string } {
  const ready = status?.conditions?.find(({ type }) => type === 'Ready');
  const isCurrent = (status?.observedGeneration ?? 0) >= (metadata.generation ?? 0);
  if (!ready || !isCurrent)
    return { cell: { text: 'Unknown', style: 'gray' }, message: 'not observed by the operator yet' };
  if (ready.status === 'True') return { cell: { text: 'True', style: 'green' }, message: '' };
  return { cell: { text: ready.reason || 'False', style: 'yellow' }, message: ready.message };
}

const columns = {
  DeviceProfile: (resource: DeviceProfile) => [resource.spec.type ?? '', resource.spec.anchoringPolicy?.mode ?? ''],
  ProvisioningTemplate: ({ spec, status }: ProvisioningTemplate) => [spec.profileRef.name, status?.keyState ?? ''],
  OtaPackage: ({ spec: { type, version, artifact }, status }: OtaPackage) => {
    const size = status?.sizeBytes ?? artifact.sizeBytes;
    return [`${type} ${version}`, size === undefined ? '' : formatBytes(size)];
  },
} satisfies Record<string, (resource: never) => string[]>;

/** Kinds formatted here. */
export type ShownKind = keyof typeof columns;

const headings: Record<ShownKind, readonly [string, string]> = {
  DeviceProfile: ['TYPE', 'ANCHORING'],
  ProvisioningTemplate: ['PROFILE', 'KEY'],
  OtaPackage: ['BUILD', 'SIZE'],
};

/** Headings of {@link resourceRow}. */
export const resourceHeadings = (kind: ShownKind, isWide: boolean): string[] => [
  ...['NAME', ...headings[kind], 'READY', 'AGE'],
  ...(isWide ? ['ID', 'MESSAGE'] : []),
];

/** Formats a resource as a table row. */
export function resourceRow(kind: ShownKind, resource: Conditioned, isWide: boolean, now: number): Cell[] {
  const { cell, message } = readiness(resource);
  const own = (columns[kind] as (given: Conditioned) => string[])(resource);
  const status = resource.status as Record<string, unknown> | undefined;
  const id = status?.['profileId'] ?? status?.['templateId'] ?? status?.['packageId'];
  return [
    resource.metadata.name,
    ...own,
    cell,
    formatAge(resource.metadata.creationTimestamp, now),
    ...(isWide ? [typeof id === 'string' ? id : '', message] : []),
  ];
}

/** Formats all details of a resource, as lines. */
export function resourceDetails(kind: ShownKind, resource: Conditioned, { paint, now }: View): string[] {
  const row = resourceRow(kind, resource, true, now);
  const text = (cell: Cell | undefined) => (typeof cell === 'object' ? paint(cell.style, cell.text) : (cell ?? ''));
  const facts = resourceHeadings(kind, true).flatMap((heading, index) => {
    const value = text(row[index]);
    const name = heading.charAt(0) + heading.slice(1).toLowerCase();
    return index === 0 || value === '' ? [] : [`${`${name}:`.padEnd(11)} ${value}`];
  });
  const conditions = (resource.status?.conditions ?? []).map(
    ({ type, status, reason, message }) =>
      `  ${type.padEnd(20)} ${status.padEnd(8)} ${reason}${message ? `: ${message}` : ''}`,
  );
  return [
    paint('bold', `${kind.toLowerCase()}/${resource.metadata.name}`),
    ...facts,
    ...(conditions.length > 0 ? ['Conditions:', ...conditions] : []),
  ];
}
