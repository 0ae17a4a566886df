// Starts the image of a device, again and again, as its boot loader does: a new image runs on trial, and if it is not
// confirmed healthy, the one before it runs again.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { startImage } from '@kellet/device';

const slots = path.join(process.env['FOLDER'] ?? 'pump-3', 'slots');
for (let status: number | null = 75; status === 75;) {
  const image = startImage(slots);
  const device = spawn(process.execPath, [path.join(import.meta.dirname, 'device.ts')], {
    stdio: 'inherit',
    env: { ...process.env, ...(image !== undefined && { IMAGE: image }) },
  });
  const forward = (signal: NodeJS.Signals): void => void device.kill(signal);
  process.on('SIGINT', forward).on('SIGTERM', forward);
  [status] = (await once(device, 'exit')) as [number | null];
  process.off('SIGINT', forward).off('SIGTERM', forward);
  process.exitCode = status ?? 1;
}
