// Finds the commands whose hint was lost, because the process that made them crashed before it was sent: devices that wait are
// looked up one after another, a small part of them each second.
import { Loop } from '../../platform/background/loop.ts';
import type { Database } from '../../platform/database/database.ts';
import { isId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { CommandFeed } from './command-feed.ts';
import { devicesWithCommands } from './commands.ts';

const pauseMilliseconds = 1000;

/** In so many seconds each waiting device is looked up once. */
const rounds = 60;

/** Wakes those of the next waiting devices that have commands. */
export async function wakeNextDevices(database: Database, feed: CommandFeed, parts = rounds): Promise<void> {
  const devices = feed.nextKeys(parts).flatMap((key) => {
    const [tenantId = '', deviceId = ''] = key.split('/');
    return isId(deviceId) ? [{ tenantId, deviceId }] : [];
  });
  if (devices.length === 0) return;
  const found = await database.systemRead((tx) => devicesWithCommands(tx, devices));
  for (const { tenantId, deviceId } of found) feed.wake(`${tenantId}/${deviceId}`);
}

/** Returns a loop that does so. */
export const missedWakes = (database: Database, logger: Logger, feed: CommandFeed): Loop =>
  new Loop(logger, 'wakes that were missed', pauseMilliseconds, () => wakeNextDevices(database, feed));
