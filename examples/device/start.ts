// Starts the image of a device, again and again, as its boot loader does: a new image runs on trial, and if it is not
// confirmed healthy, the one before it runs again.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { startImage } from '@kellet/device';

const slots = path.join(process.env['FOLDER'] ?? 'pump-3', 'slots');
let isStopped = false;
let device: ChildProcess;
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    isStopped = true;
    device.kill(signal);
  });
}
for (let status: number | null = 75; status === 75 && !isStopped;) {
  const image = startImage(slots);
  device = spawn(process.execPath, [path.join(import.meta.dirname, 'device.ts')], {
    stdio: 'inherit',
    env: { ...process.env, ...(image !== undefined && { IMAGE: image }) },
  });
  [status] = (await once(device, 'exit')) as [number | null];
  process.exitCode = status ?? 1;
}
