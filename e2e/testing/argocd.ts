// Evaluates a resource's health with Argo CD's own evaluator and the chart's settings. Needs no cluster.
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { argocdProgram } from '../../dev/stack/programs/binaries.ts';

const execute = promisify(execFile);
const settings = resolve(import.meta.dirname, '../../charts/kellet/argocd/argocd-cm.yaml');

/** A status (Healthy, Progressing, Suspended, Degraded and so on) and the message shown in the user interface. */
export interface ResourceHealth {
  status: string;
  message: string;
}

/** Returns the health of a resource according to Argo CD. */
export async function argocdHealth(resource: object): Promise<ResourceHealth> {
  const file = join(tmpdir(), `kellet-health-${randomUUID()}.json`);
  await writeFile(file, JSON.stringify(resource));
  try {
    const { stdout } = await execute(
      await argocdProgram(() => undefined),
      ['admin', 'settings', 'resource-overrides', 'health', file, '--argocd-cm-path', settings],
      { env: { ...process.env, KUBECONFIG: '/dev/null' } },
    );
    const [, status = '', message = ''] = /^STATUS: (.*)\nMESSAGE: ?(.*)/m.exec(stdout) ?? [];
    if (status === '') throw new Error(`argocd printed no status: ${stdout}`);
    return { status, message: message.trim() };
  } finally {
    await rm(file, { force: true });
  }
}
