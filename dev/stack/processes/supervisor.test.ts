import { spawn } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { findFreePorts } from '../ports/free-ports.ts';
import { isAlive, script, waitGone, withFolder } from '../testing/scratch.ts';
import { waitUntil } from '../wait.ts';
import { endRecordedProcesses, recordedProcesses } from './process-table.ts';
import { createSupervisor, restartDelay, type Supervisor } from './supervisor.ts';

/** Listens on the port of its first argument, and appends to the file of its second on SIGTERM. */
const listener = `
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
createServer((_, response) => response.end('here')).listen(Number(process.argv[2]), '127.0.0.1');
process.on('SIGTERM', () => {
  if (process.argv[3]) appendFileSync(process.argv[3], process.argv[4] + '\\n');
  process.exit(0);
});
`;

const responds = (port: number) => async () => (await fetch(`http://127.0.0.1:${port}/`)).ok;

async function withSupervisor(
  use: (supervisor: Supervisor, folder: string, reports: string[]) => Promise<void>,
): Promise<void> {
  await withFolder(async (folder) => {
    const reports: string[] = [];
    const supervisor = createSupervisor({
      recordsFolder: join(folder, 'run'),
      logsFolder: join(folder, 'logs'),
      report: (line) => reports.push(line),
    });
    try {
      await use(supervisor, folder, reports);
    } finally {
      await supervisor.stopAll();
    }
  });
}

describe('stack: restart delay', () => {
  for (const [deaths, milliseconds] of [
    [1, 200],
    [2, 400],
    [4, 1600],
    [8, 25_600],
    [9, 30_000],
    [1000, 30_000],
  ] as const) {
    it(`is ${milliseconds} ms after death ${deaths} in a row`, () => {
      expect(restartDelay(deaths)).to.equal(milliseconds);
    });
  }
});

describe('stack: supervisor', () => {
  it('resolves once the process is ready, and restarts it within 2 s after a kill', async () => {
    await withSupervisor(async (supervisor, folder) => {
      const { port } = await findFreePorts('port');
      const { command, args } = await script(folder, 'listener', listener);
      await supervisor.start({ name: 'one', command, args: [...args, String(port)], isReady: responds(port) });
      expect(await responds(port)()).to.equal(true);
      const first = supervisor.pids().one!;

      await supervisor.kill('one');
      expect(isAlive(first)).to.equal(false);
      const died = performance.now();
      await waitUntil(() => supervisor.pids().one !== undefined, { what: 'a new process', intervalMilliseconds: 10 });
      expect(performance.now() - died).to.be.below(2_000);
      expect(supervisor.pids().one).to.not.equal(first);
      await supervisor.waitReady('one');
      expect(await responds(port)()).to.equal(true);
    });
  });

  it('restarts a process that exits with code 0', async () => {
    await withSupervisor(async (supervisor, folder) => {
      const { port } = await findFreePorts('port');
      const { command, args } = await script(folder, 'listener', listener);
      await supervisor.start({ name: 'one', command, args: [...args, String(port)], isReady: responds(port) });
      const first = supervisor.pids().one!;
      supervisor.signal('one', 'SIGTERM');
      await waitUntil(() => (supervisor.pids().one ?? first) !== first, { what: 'a new process' });
    });
  });

  it('gives up the first start after three failures and quotes the log', async () => {
    await withSupervisor(async (supervisor, folder, reports) => {
      const { command, args } = await script(folder, 'broken', `console.error('no such port'); process.exit(3);`);
      const error = await supervisor.start({ name: 'broken', command, args, isReady: async () => false }).then(
        () => undefined,
        (reason: Error) => reason,
      );
      expect(error?.message).to.include('broken ended with exit code 3').and.to.include('no such port');
      expect(reports).to.have.length(2);
      expect(supervisor.pids()).to.deep.equal({});
    });
  });

  it('reports a missing command', async () => {
    await withSupervisor(async (supervisor, folder) => {
      const command = join(folder, 'missing');
      const error = await supervisor.start({ name: 'missing', command, args: [], isReady: async () => true }).then(
        () => undefined,
        (reason: Error) => reason,
      );
      expect(error?.message).to.include('ENOENT');
    });
  });

  it('keeps a stopped process stopped until it is started again', async () => {
    await withSupervisor(async (supervisor, folder) => {
      const { port } = await findFreePorts('port');
      const { command, args } = await script(folder, 'listener', listener);
      await supervisor.start({ name: 'one', command, args: [...args, String(port)], isReady: responds(port) });
      await supervisor.stop('one');
      await new Promise((resolve) => setTimeout(resolve, restartDelay(1) * 2));
      expect(supervisor.pids()).to.deep.equal({});
      await supervisor.startAgain('one');
      expect(await responds(port)()).to.equal(true);
    });
  });

  it('stops in reverse order, leaving nothing running, not even its watchdog', async () => {
    await withSupervisor(async (supervisor, folder) => {
      const order = join(folder, 'order');
      const { command, args } = await script(folder, 'listener', listener);
      for (const [name, port] of Object.entries(await findFreePorts('first', 'second', 'third'))) {
        const own = [...args, String(port), order, name];
        await supervisor.start({ name, command, args: own, isReady: responds(port) });
      }
      const pids = Object.values(supervisor.pids());
      await supervisor.stopAll();
      expect((await readFile(order, 'utf8')).trim().split('\n')).to.deep.equal(['third', 'second', 'first']);
      expect(pids.filter(isAlive)).to.deep.equal([]);
      expect(recordedProcesses(join(folder, 'run'))).to.deep.equal([]);
    });
  });

  it('kills a process that ignores SIGTERM after its timeout', async () => {
    await withSupervisor(async (supervisor, folder, reports) => {
      const { command, args } = await script(
        folder,
        'stubborn',
        `process.on('SIGTERM', () => undefined); setInterval(() => undefined, 1000); console.log('up');`,
      );
      const isReady = async () => (await readFile(join(folder, 'logs/stubborn.log'), 'utf8')).includes('up');
      await supervisor.start({ name: 'stubborn', command, args, isReady, stopTimeoutMilliseconds: 300 });
      const pid = supervisor.pids().stubborn!;
      await supervisor.stopAll();
      expect(isAlive(pid)).to.equal(false);
      expect(reports.join()).to.include('killed');
    });
  });

  it('aborts a pending start when everything is stopped', async () => {
    await withSupervisor(async (supervisor, folder) => {
      const { command, args } = await script(folder, 'silent', `setInterval(() => undefined, 1000);`);
      const start = supervisor.start({ name: 'silent', command, args, isReady: async () => false });
      const outcome = start.then(
        () => 'started',
        (error: Error) => error.message,
      );
      await waitUntil(() => supervisor.pids().silent !== undefined, { what: 'the process' });
      const pid = supervisor.pids().silent!;
      await supervisor.stopAll();
      expect(await outcome).to.equal('the stack was stopped');
      expect(isAlive(pid)).to.equal(false);
    });
  });
});

describe('stack: a supervisor that is killed', () => {
  /** A program that supervises one process, prints its pid, and waits. */
  const parent = (folder: string, watchdog: boolean) => `
import { createSupervisor } from ${JSON.stringify(join(import.meta.dirname, 'supervisor.ts'))};
const supervisor = createSupervisor({
  recordsFolder: ${JSON.stringify(join(folder, 'run'))},
  logsFolder: ${JSON.stringify(join(folder, 'logs'))},
  report: () => undefined,
});
await supervisor.start({
  name: 'child', command: process.execPath, args: ['-e', 'setInterval(() => undefined, 1000)'], isReady: async () => true,
});
${watchdog ? 'await new Promise((resolve) => setTimeout(resolve, 1000));' : ''}
console.log(supervisor.pids().child);
setInterval(() => undefined, 1000);
`;

  async function startParent(folder: string, watchdog: boolean): Promise<{ parentPid: number; child: number }> {
    const { command, args } = await script(folder, 'parent', parent(folder, watchdog));
    const started = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const child = await new Promise<number>((resolve) => {
      started.stdout.once('data', (data: Buffer) => resolve(Number(data.toString())));
    });
    return { parentPid: started.pid!, child };
  }

  it('has its processes killed by the watchdog', async () => {
    await withFolder(async (folder) => {
      const { parentPid, child } = await startParent(folder, true);
      expect(isAlive(child)).to.equal(true);
      process.kill(parentPid, 'SIGKILL');
      await waitGone(child);
      await waitUntil(() => recordedProcesses(join(folder, 'run')).length === 0, { what: 'the end of the records' });
    });
  });

  it('has its processes killed by the next start', async () => {
    await withFolder(async (folder) => {
      const { parentPid, child } = await startParent(folder, false);
      // Frozen, so that neither it nor its watchdog reacts to the end of its process.
      process.kill(parentPid, 'SIGSTOP');
      const ended = await endRecordedProcesses(join(folder, 'run'));
      process.kill(parentPid, 'SIGKILL');
      expect(ended).to.deep.equal(['child']);
      expect(isAlive(child)).to.equal(false);
    });
  });

  it('never kills a later process with the same pid', async () => {
    await withFolder(async (folder) => {
      const bystander = spawn(process.execPath, ['-e', 'setInterval(() => undefined, 1000)'], { stdio: 'ignore' });
      const record = { name: 'gone', pid: bystander.pid, identity: '1', owner: 'x', order: 0, stopSignal: 'SIGKILL' };
      await writeFile(join(folder, 'gone.json'), JSON.stringify(record));
      expect(await endRecordedProcesses(folder)).to.deep.equal([]);
      expect(isAlive(bystander.pid!)).to.equal(true);
      bystander.kill('SIGKILL');
    });
  });
});
