// Shared helpers of the stack's tests: temporary folders and scripts that act as processes.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { processIdentity } from '../processes/process-table.ts';
import { waitUntil } from '../wait.ts';

/** Runs `use` with a new folder, which is removed afterwards. */
export async function withFolder<T>(use: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), 'kellet-stack-test-'));
  try {
    return await use(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Writes a Node script into a folder. Returns the command line that runs it. */
export async function script(
  folder: string,
  name: string,
  source: string,
): Promise<{ command: string; args: string[] }> {
  const path = join(folder, `${name}.mjs`);
  await writeFile(path, source);
  return { command: process.execPath, args: [path] };
}

/** Reports whether a process runs (a zombie does not). */
export const isAlive = (pid: number): boolean => processIdentity(pid) !== undefined;

/** Resolves when the process is gone. */
export async function waitGone(pid: number, timeoutMilliseconds = 10_000): Promise<void> {
  await waitUntil(() => !isAlive(pid), {
    what: `the end of process ${pid}`,
    timeoutMilliseconds,
    intervalMilliseconds: 20,
  });
}
