// The custom resources of the operator benchmark: four kinds, and rollouts in every phase that a manifest can request.
import { createHash, randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { apiVersion, type OtaRolloutSpec, provisionKeyBinding } from '@kellet/crds';
import { customResources, type KubernetesClient } from '@kellet/kubernetes';
import type { Stack } from '../../../dev/stack/stack.ts';
import type { CustomResource, NamespacedKind } from '../../../operator/src/resources.ts';

/** The kinds in the order of creation, each with its share of all resources. */
export const shares: readonly [NamespacedKind, number][] = [
  ['DeviceProfile', 0.4],
  ['ProvisioningTemplate', 0.3],
  ['OtaPackage', 0.2],
  ['OtaRollout', 0.1],
];

const name = (prefix: string, index: number): string => `${prefix}-${String(index).padStart(5, '0')}`;

/** Variants of rollouts, a fifth each. */
const variants: readonly Partial<OtaRolloutSpec>[] = [
  {},
  { paused: true },
  { desiredState: 'RolledBack' },
  { steps: [{ percent: 50, approval: true }, { percent: 100 }] },
  { canaryPercent: 100, failureThresholdPercent: 50 },
];

/** Returns the resources by kind. Half of the templates contain the hash of a key; the others have one generated. */
export async function describeResources(stack: Stack, count: number): Promise<Map<NamespacedKind, CustomResource[]>> {
  const artifact = randomBytes(4096);
  await writeFile(join(stack.artifactsFolder, 'bench.bin'), artifact);
  const sha256 = createHash('sha256').update(artifact).digest('hex');
  const { namespace, artifacts } = stack.info;
  const make = (kind: NamespacedKind, text: string, spec: object): CustomResource =>
    ({ apiVersion, kind, metadata: { name: text, namespace }, spec }) as CustomResource;
  const specs: Record<NamespacedKind, (index: number) => CustomResource> = {
    DeviceProfile: (index) =>
      make('DeviceProfile', name('profile', index), { type: 'bench', defaultTags: { index: `${index}` } }),
    ProvisioningTemplate: (index) =>
      make('ProvisioningTemplate', name('template', index), {
        profileRef: { name: name('profile', index) },
        ...(index % 2 === 0 && {
          keySha256: createHash('sha256').update(`${index}`).digest('hex'),
          keyBinding: provisionKeyBinding(stack.info.tenant, `${index}`),
        }),
      }),
    OtaPackage: (index) =>
      make('OtaPackage', name('package', index), {
        type: 'Firmware',
        version: `1.0.${index}`,
        artifact: { uri: `${artifacts}/bench.bin`, sha256, sizeBytes: artifact.length },
      }),
    OtaRollout: (index) =>
      make('OtaRollout', name('rollout', index), {
        packageRef: { name: name('package', 2 * index) },
        rollbackPackageRef: { name: name('package', 2 * index + 1) },
        targetProfileRef: { name: name('profile', index) },
        canaryPercent: 10,
        ...variants[index % variants.length],
      }),
  };
  return new Map(
    shares.map(([kind, share]) => [
      kind,
      Array.from({ length: Math.round(count * share) }, (_, index) => specs[kind](index)),
    ]),
  );
}

/** Runs `work` on all items, with this many in parallel. */
export async function inParallel<T>(items: readonly T[], workers: number, work: (item: T) => Promise<unknown>) {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < items.length) await work(items[next++]!);
  };
  await Promise.all(Array.from({ length: workers }, worker));
}

/** Creates the resources in the cluster. */
export async function createResources(client: KubernetesClient, resources: readonly CustomResource[]): Promise<void> {
  await inParallel(resources, 32, (resource) => client.create(customResources[resource.kind], resource));
}
