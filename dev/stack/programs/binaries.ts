// The programs that the local stack runs: their versions, where they are found, or what they are built from.
import { execFile } from 'node:child_process';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../paths.ts';
import { certManagerMain, certManagerVersion } from './cert-manager.ts';
import {
  buildPrograms,
  cachedProgram,
  expectedSeconds,
  fileExists,
  type GoProgram,
  moduleFiles,
  type Report,
  roughly,
} from './go-build.ts';

const execute = promisify(execFile);

const kubernetesVersion = 'v1.35.4';
const kubernetesModule = 'k8s.io/kubernetes';

/**
 * Returns the replacements that k8s.io/kubernetes needs when it is built outside its repository: its go.mod points the
 * staging modules at folders; they are published under the same version with major number 0.
 */
export function stagingReplacements(goMod: string): string[] {
  const published = kubernetesVersion.replace(/^v1\./, 'v0.');
  return [...goMod.matchAll(/^\s*(k8s\.io\/[a-z0-9-]+) => \.\/staging\//gm)].map(
    ([, module]) => `${module}=${module}@${published}`,
  );
}

/** Returns the replacements of a go.mod, which Go applies only in a main module, except those by a folder. */
export function statedReplacements(goMod: string): string[] {
  return [...goMod.matchAll(/^(?:replace)?\s*(\S+)(?: (v\S+))? => ([^\s.]\S*) (v\S+)/gm)].map(
    ([, from, fromVersion, to, toVersion]) => `${from}${fromVersion ? `@${fromVersion}` : ''}=${to}@${toVersion}`,
  );
}

/** Built in one folder, with the modules of all. */
const kubernetesFamily = {
  name: 'kubernetes',
  packages: [
    ...['kube-apiserver', 'kube-controller-manager', 'kubectl'],
    ...['kube-scheduler', 'kubelet', 'kube-proxy'],
  ].map((name) => `${kubernetesModule}/cmd/${name}`),
};

/** A program of k8s.io/kubernetes with its version linked in: Helm, kubectl and feature gates require it. */
function kubernetesProgram(name: string, seconds: number): GoProgram {
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
    seconds,
    variables: Object.fromEntries(variables) as Record<string, string>,
    family: kubernetesFamily,
    replacements: stagingReplacements,
  };
}

const etcd: GoProgram = {
  name: 'etcd',
  version: 'v3.6.5',
  module: 'go.etcd.io/etcd/server/v3',
  package: 'go.etcd.io/etcd/server/v3',
  seconds: 35,
};
const natsServer: GoProgram = {
  name: 'nats-server',
  version: 'v2.15.2',
  module: 'github.com/nats-io/nats-server/v2',
  package: 'github.com/nats-io/nats-server/v2',
  seconds: 35,
};
// An S3 service over a folder, which verifies signatures.
const versitygw: GoProgram = {
  name: 'versitygw',
  version: 'v1.8.0',
  module: 'github.com/versity/versitygw',
  package: 'github.com/versity/versitygw/cmd/versitygw',
  seconds: 60,
};
const helm: GoProgram = {
  name: 'helm',
  version: 'v4.3.1',
  module: 'helm.sh/helm/v4',
  package: 'helm.sh/helm/v4/cmd/helm',
  seconds: 120,
  variables: { 'helm.sh/helm/v4/internal/version.version': 'v4.3.1' },
};
// The last release line that builds from its published module alone: later ones replace gitops-engine by a folder.
const argocd: GoProgram = {
  name: 'argocd',
  version: 'v3.2.11',
  module: 'github.com/argoproj/argo-cd/v3',
  package: 'github.com/argoproj/argo-cd/v3/cmd',
  seconds: 270,
  variables: { 'github.com/argoproj/argo-cd/v3/common.version': '3.2.11' },
  replacements: statedReplacements,
};
// With the plugins that a cluster needs: its own main package also compiles those of three clouds.
const coredns: GoProgram = {
  name: 'coredns',
  version: 'v1.15.0',
  module: 'github.com/coredns/coredns',
  package: 'github.com/coredns/coredns/coremain',
  seconds: 190,
  source: mainOfCoreDns(['bind', 'errors', 'cache', 'kubernetes', 'forward']),
};
const kubectl = kubernetesProgram('kubectl', 25);
// Keeps the namespaces of a pod: the only program of the image that every pod's sandbox runs.
const pause: GoProgram = {
  name: 'pause',
  version: 'v0.49.0',
  module: 'golang.org/x/sys',
  package: 'golang.org/x/sys/unix',
  seconds: 5,
  source: `package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGINT, unix.SIGTERM)
	<-stop
}
`,
};
const kwok: GoProgram = {
  name: 'kwok',
  version: 'v0.8.0',
  module: 'sigs.k8s.io/kwok',
  package: 'sigs.k8s.io/kwok/cmd/kwok',
  seconds: 105,
};
const certManager: GoProgram = {
  name: 'cert-manager',
  version: certManagerVersion,
  module: 'github.com/cert-manager/cert-manager',
  package: 'github.com/cert-manager/cert-manager/pkg/controller',
  seconds: 90,
  source: certManagerMain,
};
const scheduler = kubernetesProgram('kube-scheduler', 10);
const nodeParts = [scheduler, kubernetesProgram('kubelet', 40), kubernetesProgram('kube-proxy', 15)];
const controlPlane = [etcd, kubernetesProgram('kube-apiserver', 195), kubernetesProgram('kube-controller-manager', 65)];

/** Returns a main package of CoreDNS with some plugins, in the order in which they handle a query. */
function mainOfCoreDns(plugins: readonly string[]): string {
  const path = 'github.com/coredns/coredns';
  return `package main

import (
	"${path}/core/dnsserver"
	"${path}/coremain"
${plugins.map((plugin) => `	_ "${path}/plugin/${plugin}"\n`).join('')})

func main() {
	dnsserver.Directives = []string{${plugins.map((plugin) => `"${plugin}"`).join(', ')}}
	coremain.Run()
}
`;
}

/** Paths of the control plane's programs. */
export interface ControlPlanePrograms {
  etcd: string;
  kubeApiserver: string;
  kubeControllerManager: string;
}

/** Returns the first file of this name in the folders of $PATH. */
export async function findOnPath(name: string, path = process.env.PATH ?? ''): Promise<string | undefined> {
  for (const folder of path.split(delimiter).filter(Boolean)) {
    const candidate = join(folder, name);
    if (await fileExists(candidate)) return candidate;
  }
  return undefined;
}

/** Reports whether version `found` (major, minor) is at least `least`. */
export function isAtLeast(found: readonly [number, number], least: readonly [number, number]): boolean {
  return found[0] > least[0] || (found[0] === least[0] && found[1] >= least[1]);
}

/** Returns the path of `name` on $PATH if the first version number that it prints for `args` is recent enough. */
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

/** Programs that are used from $PATH: the arguments that print their version, and the minimum version. */
const onPath: Record<string, { args: string[]; least: readonly [number, number] }> = {
  // Per-message TTL.
  'nats-server': { args: ['--version'], least: [2, 11] },
  // At most one minor version away from the API server's.
  kubectl: { args: ['version', '--client'], least: [1, 34] },
  helm: { args: ['version', '--short'], least: [4, 0] },
  argocd: { args: ['version', '--client', '--short'], least: [3, 0] },
};

/** Returns the path of a program that need not be built: from the cache, else from $PATH if it is recent enough. */
async function findProgram(program: GoProgram): Promise<string | undefined> {
  const cached = cachedProgram(cacheFolder(), program);
  if (await fileExists(cached)) return cached;
  const wanted = onPath[program.name];
  return wanted && recentProgram(program.name, wanted.args, wanted.least);
}

async function build(programs: readonly GoProgram[], report: Report, signal?: AbortSignal) {
  return buildPrograms(programs, { cache: cacheFolder(), report, signal });
}

async function findOrBuild(program: GoProgram, report: Report, signal?: AbortSignal): Promise<string> {
  return (await findProgram(program)) ?? (await build([program], report, signal))[program.name]!;
}

/** nats-server: from $PATH if it is 2.11 or later, else built. */
export const natsServerProgram = (report: Report, signal?: AbortSignal): Promise<string> =>
  findOrBuild(natsServer, report, signal);

/** kubectl: from $PATH if it is at most one minor version away from the API server's, else built. */
export const kubectlProgram = (report: Report, signal?: AbortSignal): Promise<string> =>
  findOrBuild(kubectl, report, signal);

/** Versity S3 Gateway, an S3 service that only tests need: built. */
export const s3ServerProgram = (report: Report, signal?: AbortSignal): Promise<string> =>
  findOrBuild(versitygw, report, signal);

/** Helm, needed only by tests: from $PATH if it is Helm 4, else built. */
export const helmProgram = (report: Report, signal?: AbortSignal): Promise<string> => findOrBuild(helm, report, signal);

/** Argo CD, whose evaluator of health checks is needed by one test: from $PATH if it is 3.x, else built. */
export const argocdProgram = (report: Report, signal?: AbortSignal): Promise<string> =>
  findOrBuild(argocd, report, signal);

/** The controllers of cert-manager, needed by one test: built. */
export const certManagerProgram = (report: Report, signal?: AbortSignal): Promise<string> =>
  findOrBuild(certManager, report, signal);

/** Paths of the programs that pretend to run pods, and of the folder of kwok's stages. */
export interface PretendingPrograms {
  kubeScheduler: string;
  kwok: string;
  stages: string;
}

/** The scheduler and kwok, which only a cluster of pretended pods needs: built. */
export async function pretendingPrograms(report: Report, signal?: AbortSignal): Promise<PretendingPrograms> {
  const paths = await build([scheduler, kwok], report, signal);
  const stages = join(await moduleFiles(`${kwok.module}@${kwok.version}`), 'kustomize/stage');
  return { kubeScheduler: paths['kube-scheduler']!, kwok: paths['kwok']!, stages };
}

/** Paths of the programs that make this machine a node. */
export interface NodePrograms {
  kubeScheduler: string;
  kubelet: string;
  kubeProxy: string;
  coredns: string;
  pause: string;
}

/** The scheduler, kubelet, kube-proxy and CoreDNS, which only a cluster with real pods needs: built. */
export async function nodePrograms(report: Report, signal?: AbortSignal): Promise<NodePrograms> {
  const paths = await build([...nodeParts, coredns, pause], report, signal);
  return {
    kubeScheduler: paths['kube-scheduler']!,
    kubelet: paths['kubelet']!,
    kubeProxy: paths['kube-proxy']!,
    coredns: paths['coredns']!,
    pause: paths['pause']!,
  };
}

/** Programs that can be requested by name. */
export type ProgramName =
  'nats-server' | 'control plane' | 'kubectl' | 'versitygw' | 'helm' | 'argocd' | 'node' | 'kwok' | 'cert-manager';

const programsOf: Record<ProgramName, readonly GoProgram[]> = {
  'nats-server': [natsServer],
  'control plane': controlPlane,
  kubectl: [kubectl],
  versitygw: [versitygw],
  helm: [helm],
  argocd: [argocd],
  node: [...nodeParts, coredns, pause],
  kwok: [scheduler, kwok],
  'cert-manager': [certManager],
};

/** Reports which of these programs must be built, and how long that may take. */
export async function announceBuilds(names: readonly ProgramName[], report: Report): Promise<void> {
  const assets = process.env.KUBEBUILDER_ASSETS;
  const missing: GoProgram[] = [];
  for (const program of names.flatMap((name) => programsOf[name])) {
    const given = assets !== undefined && (await fileExists(join(assets, program.name)));
    if (!given && !(await findProgram(program))) missing.push(program);
  }
  if (missing.length === 0) return;
  const seconds = expectedSeconds(missing);
  report(
    `${missing.map(({ name }) => name).join(', ')}: built once for this machine, in ${roughly(seconds)} if it is idle`,
  );
}

/** etcd, kube-apiserver and kube-controller-manager: each from $KUBEBUILDER_ASSETS if present, else built. */
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
