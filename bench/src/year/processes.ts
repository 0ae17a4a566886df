// Further processes of kellet-apiserver on an empty or a populated installation.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { findFreePorts } from '../../../dev/stack/ports/free-ports.ts';
import type { Environment } from '../environment.ts';

const main = join(import.meta.dirname, '../../../apiserver/src/main.ts');

/** Runs a command of kellet-apiserver and returns its output, and whether its exit code was 0. */
export function runCommand(
  settings: Readonly<Record<string, string>>,
  ...args: readonly string[]
): Promise<{ readonly output: string; readonly isDone: boolean }> {
  const options = { env: { ...process.env, ...settings }, maxBuffer: 1 << 26 };
  return new Promise((resolve) => {
    execFile(process.execPath, [main, ...args], options, (error, stdout, stderr) =>
      resolve({ output: error ? stdout + stderr : stdout, isDone: error === null }),
    );
  });
}

/** Starts another apiserver and returns the milliseconds until it is ready. */
export async function timeOfStart({ settings }: Environment): Promise<number> {
  const ports = await findFreePorts('rest', 'grpc', 'control', 'metrics', 'mqtt');
  const own = Object.fromEntries(
    Object.entries(ports).map(([name, port]) => [`KELLET_${name.toUpperCase()}_PORT`, String(port)]),
  );
  const started = performance.now();
  const child = spawn(process.execPath, [main], { env: { ...process.env, ...settings, ...own }, stdio: 'ignore' });
  const ended = once(child, 'exit');
  try {
    for (;;) {
      const response = await fetch(`http://127.0.0.1:${ports.metrics}/readyz`).catch(() => undefined);
      if (response?.ok) return performance.now() - started;
      if (child.exitCode !== null) throw new Error(`the apiserver has ended with ${child.exitCode}`);
      await sleep(20);
    }
  } finally {
    child.kill('SIGTERM');
    await ended;
  }
}
