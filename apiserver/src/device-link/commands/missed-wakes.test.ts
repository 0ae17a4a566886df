import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { CommandFeed } from './command-feed.ts';
import { enqueueCommand } from './commands.ts';
import { wakeNextDevices } from './missed-wakes.ts';

describe('wakes that were missed', () => {
  let test: TestDatabase;
  beforeEach(async () => {
    test = await createTestDatabase();
  });
  afterEach(() => test.drop());

  it('are made up for, of the devices with commands only', async () => {
    // Notifications never arrive here, as when the process that made the command crashed before it sent any.
    const feed = new CommandFeed({ listen: () => undefined });
    const woken: string[] = [];
    const devices = ['with', 'later', 'without'].map((name) => {
      const deviceId = newId();
      feed.watch(`acme/${deviceId}`, () => woken.push(name));
      return deviceId;
    });
    feed.watch(newId(), () => woken.push('a call that waits for its result'));
    const command = { tenantId: 'acme', method: 'reboot', params: {}, persistent: true, expiresInSeconds: 60 };
    await test.database.tenant('acme', async (tx) => {
      for (const deviceId of devices.slice(0, 2))
        await enqueueCommand(tx, { ...command, deviceId, idempotencyKey: undefined });
      await tx.query(`UPDATE device_commands SET not_before = now() + interval '1 hour' WHERE device_id = $1`, [
        devices[1],
      ]);
    });
    await wakeNextDevices(test.database, feed, 1);
    expect(woken).to.deep.equal(['with']);
    for (let part = 0; part < 4; part += 1) await wakeNextDevices(test.database, feed, 4);
    expect(woken).to.deep.equal(['with', 'with']);
  });
});
