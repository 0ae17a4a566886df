// The programs that the local stack runs and does not bring along: which versions, found where or built from what.
import { execFile } from 'node:child_process';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import type { GoProgram, Report } from './go-build.ts';
import { buildPrograms, cachedProgram, fileExists } from './go-build.ts';
import { cacheFolder } from './paths.ts';

const execute = promisify(execFile);

const kubernetesVersion = 'v1.35.4';
const kubernetesModule = 'k8s.io/kubernetes';

/**
 * The replacements that k8s.io/kubernetes needs when it is built from outside its repository: its go.mod points the
 * staging modules at folders, and they are published under the same version with 0 for the first number.
 */
export function stagingReplacements(goMod: string): string[] {
  const published = kubernetesVersion.replace(/^v1\./, 'v0.');
  return [...goMod.matchAll(/^\s*(k8s\.io\/[a-z0-9-]+) => \.\/staging\//gm)].map(
    ([, module]) => `${module}=${module}@${published}`,
  );
}

/** The replacements that a go.mod states for itself and that count only in a main module, except those by a folder. */
export function statedReplacements(goMod: string): string[] {
  return [...goMod.matchAll(/^(?:replace)?\s*(\S+)(?: (v\S+))? => ([^\s.]\S*) (v\S+)/gm)].map(
    ([, from, fromVersion, to, toVersion]) => `${from}${fromVersion ? `@${fromVersion}` : ''}=${to}@${toVersion}`,
  );
}

/** A program of k8s.io/kubernetes, told its own version: Helm, kubectl and feature gates ask for it. */
function kubernetesProgram(name: string): GoProgram {
  const minor = kubernetesVersion.split('.')[1]!;
  const variables = ['k8s.io/component-base/version', 'k8s.io/client-go/pkg/version'].flatMap((path) => [
    [`${path}.gitVersion`, kubernetesVersion],
    [`${path}.gitMajor`, '1'],
    [`${path}.gitMinor`, minor],
    [`${path}.gitTreeState`, 'clean'],
  ]);
  return {
    name,
    version: kubernetesVersion,
    module: kubernetesModule,
    package: `${kubernetesModule}/cmd/${name}`,
    variables: Object.fromEntries(variables) as Record<string, string>,
    family: 'kubernetes',
    replacements: stagingReplacements,
  };
}

const etcd: GoProgram = {
  name: 'etcd',
  version: 'v3.6.5',
  module: 'go.etcd.io/etcd/server/v3',
  package: 'go.etcd.io/etcd/server/v3',
};
const natsServer: GoProgram = {
  name: 'nats-server',
  version: 'v2.15.2',
  module: 'github.com/nats-io/nats-server/v2',
  package: 'github.com/nats-io/nats-server/v2',
};
const helm: GoProgram = {
  name: 'helm',
  version: 'v4.3.1',
  module: 'helm.sh/helm/v4',
  package: 'helm.sh/helm/v4/cmd/helm',
  variables: { 'helm.sh/helm/v4/internal/version.version': 'v4.3.1' },
};
// The last line that builds from its published module alone: later ones replace gitops-engine by a folder.
const argocd: GoProgram = {
  name: 'argocd',
  version: 'v3.2.11',
  module: 'github.com/argoproj/argo-cd/v3',
  package: 'github.com/argoproj/argo-cd/v3/cmd',
  variables: { 'github.com/argoproj/argo-cd/v3/common.version': '3.2.11' },
  replacements: statedReplacements,
};
const kubectl = kubernetesProgram('kubectl');
const controlPlane = [etcd, kubernetesProgram('kube-apiserver'), kubernetesProgram('kube-controller-manager')];

/** The paths of the control plane's programs. */
export interface ControlPlanePrograms {
  etcd: string;
  kubeApiserver: string;
  kubeControllerManager: string;
}

/** The first file of this name in the folders of $PATH. */
export async function findOnPath(name: string, path = process.env.PATH ?? ''): Promise<string | undefined> {
  for (const folder of path.split(delimiter).filter(Boolean)) {
    const candidate = join(folder, name);
    if (await fileExists(candidate)) return candidate;
  }
  return undefined;
}

/** Whether version `found` (major, minor) is at least `least`. */
export function isAtLeast(found: readonly [number, number], least: readonly [number, number]): boolean {
  return found[0] > least[0] || (found[0] === least[0] && found[1] >= least[1]);
}

/** The path of `name` on $PATH when the first version number it prints for `args` is recent enough. */
async function recentProgram(
  name: string,
  args: string[],
  least: readonly [number, number],
): Promise<string | undefined> {
  const path = await findOnPath(name);
  if (!path) return undefined;
  const printed = await execute(path, args, { timeout: 5_000 }).catch(() => undefined);
  const version = printed && /v?(\d+)\.(\d+)\.\d+/.exec(printed.stdout);
  return version && isAtLeast([Number(version[1]), Number(version[2])], least) ? path : undefined;
}

async function build(programs: readonly GoProgram[], report: Report, signal?: AbortSignal) {
  return buildPrograms(programs, { cache: cacheFolder(), report, signal });
}

/** nats-server: from $PATH when it is 2.11 or later (per-message TTL), else built. */
export async function natsServerProgram(report: Report, signal?: AbortSignal): Promise<string> {
  if (await fileExists(cachedProgram(cacheFolder(), natsServer))) return cachedProgram(cacheFolder(), natsServer);
  const found = await recentProgram('nats-server', ['--version'], [2, 11]);
  return found ?? (await build([natsServer], report, signal))['nats-server']!;
}

/** kubectl: from $PATH when it is at most one minor version away from the API server's, else built. */
export async function kubectlProgram(report: Report, signal?: AbortSignal): Promise<string> {
  if (await fileExists(cachedProgram(cacheFolder(), kubectl))) return cachedProgram(cacheFolder(), kubectl);
  const found = await recentProgram('kubectl', ['version', '--client'], [1, 34]);
  return found ?? (await build([kubectl], report, signal)).kubectl!;
}

/** Helm, which only tests need: from $PATH when it is Helm 4, else built. */
export async function helmProgram(report: Report, signal?: AbortSignal): Promise<string> {
  if (await fileExists(cachedProgram(cacheFolder(), helm))) return cachedProgram(cacheFolder(), helm);
  return (await recentProgram('helm', ['version', '--short'], [4, 0])) ?? (await build([helm], report, signal)).helm!;
}

/** Argo CD, whose own evaluator judges the health checks that only a test needs: from $PATH when it is 3.x, else built. */
export async function argocdProgram(report: Report, signal?: AbortSignal): Promise<string> {
  if (await fileExists(cachedProgram(cacheFolder(), argocd))) return cachedProgram(cacheFolder(), argocd);
  const found = await recentProgram('argocd', ['version', '--client', '--short'], [3, 0]);
  return found ?? (await build([argocd], report, signal)).argocd!;
}

/** etcd, kube-apiserver and kube-controller-manager: from $KUBEBUILDER_ASSETS as far as it has them, else built. */
export async function controlPlanePrograms(
  report: Report,
  signal?: AbortSignal,
  assets = process.env.KUBEBUILDER_ASSETS,
): Promise<ControlPlanePrograms> {
  const found: Record<string, string> = {};
  for (const { name } of controlPlane) {
    if (assets && (await fileExists(join(assets, name)))) found[name] = join(assets, name);
  }
  const missing = controlPlane.filter(({ name }) => !found[name]);
  const paths = { ...(missing.length ? await build(missing, report, signal) : {}), ...found };
  return {
    etcd: paths.etcd!,
    kubeApiserver: paths['kube-apiserver']!,
    kubeControllerManager: paths['kube-controller-manager']!,
  };
}
