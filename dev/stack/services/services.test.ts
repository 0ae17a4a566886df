// PostgreSQL and NATS under the supervisor: acknowledged data survives a kill.
import { chmod } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { connect } from 'nats';
import pg from 'pg';
import { findFreePorts } from '../ports/free-ports.ts';
import { createSupervisor, type Supervisor } from '../processes/supervisor.ts';
import { natsServerProgram } from '../programs/binaries.ts';
import { randomPassword } from '../secrets.ts';
import { withFolder } from '../testing/scratch.ts';
import { natsInfo, startNats } from './nats.ts';
import { ensureServiceDatabase, startPostgres } from './postgres.ts';

async function withSupervisor(use: (supervisor: Supervisor, folder: string, port: number) => Promise<void>) {
  await withFolder(async (folder) => {
    await chmod(folder, 0o711);
    const options = { recordsFolder: join(folder, 'run'), logsFolder: join(folder, 'logs'), report: () => undefined };
    const supervisor = createSupervisor(options);
    const { port } = await findFreePorts('port');
    try {
      await use(supervisor, folder, port);
    } finally {
      await supervisor.stopAll();
    }
  });
}

async function query<Row extends pg.QueryResultRow>(url: string, sql: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end();
  }
}

describe('stack: PostgreSQL', function () {
  this.timeout(120_000);

  it('keeps committed rows across kill -9, with fsync and an unprivileged service role', async () => {
    await withSupervisor(async (supervisor, folder, port) => {
      const options = { supervisor, folder: join(folder, 'postgres'), port, password: randomPassword() };
      const { superuserUrl } = await startPostgres(options);
      const url = await ensureServiceDatabase(superuserUrl, randomPassword());
      await query(url, 'CREATE TABLE kept (value integer); INSERT INTO kept VALUES (42)');

      await supervisor.kill('postgres');
      await supervisor.waitReady('postgres');
      expect(await query(url, 'SELECT value FROM kept')).to.deep.equal([{ value: 42 }]);

      // Stopped and started again on the same data, as in the next run.
      await supervisor.stop('postgres');
      await supervisor.startAgain('postgres');
      const again = await ensureServiceDatabase(superuserUrl, randomPassword());
      expect(await query(again, 'SELECT value FROM kept')).to.deep.equal([{ value: 42 }]);
      const role = 'SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user';
      expect(await query(again, role)).to.deep.equal([{ rolsuper: false, rolcreaterole: true }]);
      expect(await query(again, 'SHOW fsync')).to.deep.equal([{ fsync: 'on' }]);
    });
  });
});

describe('stack: NATS', function () {
  this.timeout(120_000);

  it('keeps a stream across kill -9', async () => {
    await withSupervisor(async (supervisor, folder, port) => {
      const program = await natsServerProgram(() => undefined);
      const url = await startNats({ supervisor, program, folder: join(folder, 'nats'), port });
      const first = await connect({ servers: url });
      await (await first.jetstreamManager()).streams.add({ name: 'KEPT', subjects: ['kept'] });
      await first.jetstream().publish('kept', 'payload');
      await first.close();

      await supervisor.kill('nats');
      await supervisor.waitReady('nats');
      const second = await connect({ servers: url });
      const message = await (await second.jetstreamManager()).streams.getMessage('KEPT', { seq: 1 });
      await second.close();
      expect(Buffer.from(message.data).toString()).to.equal('payload');
    });
  });

  it('is not ready if nothing listens', async () => {
    const { port } = await findFreePorts('port');
    expect(await natsInfo(port)).to.equal(undefined);
  });
});
