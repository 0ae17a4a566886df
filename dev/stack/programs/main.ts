// Builds programs in advance: node dev/stack/programs/main.ts [NAME]...
// Names: nats-server, control plane, kubectl, redis, versitygw, helm, argocd, node, kwok, cert-manager; default: all but
// the last three, which only clusters with pods need.
import {
  announceBuilds,
  argocdProgram,
  certManagerProgram,
  controlPlanePrograms,
  helmProgram,
  kubectlProgram,
  natsServerProgram,
  nodePrograms,
  pretendingPrograms,
  type ProgramName,
  s3ServerProgram,
} from './binaries.ts';
import type { Report } from './go-build.ts';
import { redisServerProgram } from './redis-server.ts';

const report: Report = (line) => console.log(`    ${line}`);

/** Build order; the builds of a row run concurrently. */
const rows: Partial<Record<ProgramName | 'redis', () => Promise<unknown>>>[] = [
  {
    'nats-server': () => natsServerProgram(report),
    // Needed by few tests, which report if it is missing.
    redis: () => redisServerProgram(report).catch((error: Error) => report(error.message)),
    versitygw: () => s3ServerProgram(report),
    'control plane': () => controlPlanePrograms(report),
    kubectl: () => kubectlProgram(report),
  },
  {
    helm: () => helmProgram(report),
    argocd: () => argocdProgram(report),
    node: () => nodePrograms(report),
    kwok: () => pretendingPrograms(report),
    'cert-manager': () => certManagerProgram(report),
  },
];

const known = rows.flatMap((row) => Object.keys(row) as (ProgramName | 'redis')[]);
const onlyForPods: readonly string[] = ['node', 'kwok', 'cert-manager'];
const given = process.argv.slice(2);
const unknown = given.find((name) => !(known as string[]).includes(name));
if (unknown !== undefined) throw new Error(`unknown program ${unknown}: must be one of ${known.join(', ')}`);
const wanted = known.filter((name) => (given.length === 0 ? !onlyForPods.includes(name) : given.includes(name)));
await announceBuilds(
  wanted.filter((name) => name !== 'redis'),
  report,
);
for (const row of rows) {
  const outcomes = await Promise.allSettled(wanted.flatMap((name) => row[name]?.() ?? []));
  for (const outcome of outcomes) {
    if (outcome.status === 'fulfilled') continue;
    report(outcome.reason instanceof Error ? outcome.reason.message : String(outcome.reason));
    process.exitCode = 1;
  }
}
