// Starts processes, waits until they are ready, restarts them when they die, and stops them in order.
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { waitUntil } from '../wait.ts';
import { forgetProcess, ownerOf, processIdentity, recordProcess, signalProcess } from './process-table.ts';

/** A process to keep running. */
export interface ProcessSpecification {
  /** Unique in the supervisor; names the log file and the record. */
  name: string;
  command: string;
  args: readonly string[];
  /** Set on top of this process's own environment; undefined removes a variable. */
  environment?: Readonly<Record<string, string | undefined>>;
  folder?: string;
  /** Runs as this user (needs root). */
  user?: { uid: number; gid: number };
  /** Signal for a graceful shutdown (default SIGTERM). */
  stopSignal?: NodeJS.Signals;
  /** Milliseconds after which a stopping process is killed (default 10 s). */
  stopTimeoutMilliseconds?: number;
  /** Checks readiness; false and errors both mean "not yet". */
  isReady: () => Promise<boolean>;
  /** Timeout of the first start (default 60 s). */
  readyTimeoutMilliseconds?: number;
}

/** Folders of a supervisor and the receiver of its reports. */
export interface SupervisorOptions {
  /** Records of running processes (process-table.ts). */
  recordsFolder: string;
  logsFolder: string;
  /** Receives one human-readable line. */
  report: (line: string) => void;
  /** Called after each start of a process, with its new pid. */
  onStarted?: (name: string, pid: number) => void;
}

/** Keeps processes running. Methods with a name throw if there is no such process. */
export interface Supervisor {
  /** Starts a process. Resolves when it is ready. Rejects with the end of its log if it cannot be started. */
  start(specification: ProcessSpecification): Promise<void>;
  /** Stops a process gracefully until `startAgain`. */
  stop(name: string): Promise<void>;
  /** Restarts a process after `stop`. Resolves when it is ready. */
  startAgain(name: string): Promise<void>;
  /** Kills a process (SIGKILL), which is then restarted. Resolves when it is dead. */
  kill(name: string): Promise<void>;
  /** Sends a signal, for example SIGSTOP and SIGCONT. */
  signal(name: string, signal: NodeJS.Signals): void;
  /** Resolves when the process runs and is ready. */
  waitReady(name: string, timeoutMilliseconds?: number): Promise<void>;
  /** The pids of all running processes by name. */
  pids(): Record<string, number>;
  /** Stops all processes, the last started first. May be called repeatedly. */
  stopAll(): Promise<void>;
}

const startAttempts = 3;
const firstDelayMilliseconds = 200;
const maxDelayMilliseconds = 30_000;
/** A process that ran this long is considered healthy: its failure count is reset. */
const healthyAfterMilliseconds = 10_000;

/**
 * Returns the restart delay in milliseconds after `deaths` consecutive deaths: 200 ms after the first, doubling up to
 * 30 s.
 */
export function restartDelay(deaths: number): number {
  return Math.min(firstDelayMilliseconds * 2 ** Math.max(0, deaths - 1), maxDelayMilliseconds);
}

interface Supervised {
  specification: ProcessSpecification;
  order: number;
  child?: ChildProcess | undefined;
  startedAt: number;
  /** Consecutive deaths. */
  deaths: number;
  /** Whether it should be running. */
  wanted: boolean;
  /** Whether it has been ready since its first start. Until then its deaths count against `startAttempts`. */
  established: boolean;
  exited: Promise<void>;
  lastExit: string;
}

/** Creates a supervisor. Its watchdog is started with the first process. */
export function createSupervisor({ recordsFolder, logsFolder, report, onStarted }: SupervisorOptions): Supervisor {
  const all = new Map<string, Supervised>();
  const owner = ownerOf(process.pid);
  let watchdog: ChildProcess | undefined;
  let stopping = false;
  /** Aborts all waiting when everything is stopped. */
  const stopped = new AbortController();

  function find(name: string): Supervised {
    const found = all.get(name);
    if (!found) throw new Error(`no process is called ${name}: there are ${[...all.keys()].join(', ')}`);
    return found;
  }

  function startWatchdog(): void {
    watchdog = spawn(process.execPath, [join(import.meta.dirname, 'watchdog.ts'), recordsFolder, owner], {
      stdio: ['pipe', 'ignore', 'ignore'],
      detached: true,
    });
    watchdog.unref();
    // A dead watchdog is not an error, because the next start also cleans up.
    watchdog.on('error', () => undefined);
    watchdog.stdin?.on('error', () => undefined);
    (watchdog.stdin as unknown as { unref?: () => void } | null)?.unref?.();
  }

  function spawnProcess(supervised: Supervised): void {
    const { specification } = supervised;
    const log = openSync(join(logsFolder, `${specification.name}.log`), 'a', 0o600);
    const environment: NodeJS.ProcessEnv = { ...process.env, ...specification.environment };
    const child = spawn(specification.command, specification.args, {
      stdio: ['ignore', log, log],
      env: environment,
      cwd: specification.folder,
      // A separate session, so that Ctrl-C in the terminal reaches only the supervisor, which stops everything in
      // order.
      detached: true,
      ...specification.user,
    });
    closeSync(log);
    supervised.child = child;
    supervised.startedAt = performance.now();
    supervised.exited = new Promise((resolve) => {
      const ended = (how: string) => {
        if (supervised.child !== child) return;
        supervised.child = undefined;
        supervised.lastExit = how;
        forgetProcess(recordsFolder, specification.name);
        resolve();
        onEnded(supervised);
      };
      child.once('error', (error) => ended(error.message));
      child.once('exit', (code, signal) => ended(signal ? `signal ${signal}` : `exit code ${code}`));
    });
    if (child.pid === undefined) return;
    recordProcess(recordsFolder, {
      name: specification.name,
      pid: child.pid,
      identity: processIdentity(child.pid) ?? '',
      owner,
      order: supervised.order,
      stopSignal: specification.stopSignal ?? 'SIGTERM',
    });
    onStarted?.(specification.name, child.pid);
  }

  function onEnded(supervised: Supervised): void {
    if (!supervised.wanted || stopping) return;
    supervised.deaths = performance.now() - supervised.startedAt > healthyAfterMilliseconds ? 1 : supervised.deaths + 1;
    if (!supervised.established && supervised.deaths >= startAttempts) return;
    const delay = restartDelay(supervised.deaths);
    report(`${supervised.specification.name} died (${supervised.lastExit}), starting it again in ${delay / 1000} s`);
    void sleep(delay).then(() => {
      if (supervised.wanted && !stopping && !supervised.child) spawnProcess(supervised);
    });
  }

  function logTail(name: string): string {
    try {
      return readFileSync(join(logsFolder, `${name}.log`), 'utf8')
        .trimEnd()
        .split('\n')
        .slice(-15)
        .join('\n');
    } catch {
      return '';
    }
  }

  async function waitFirstReady(supervised: Supervised): Promise<void> {
    const { name, isReady, readyTimeoutMilliseconds = 60_000 } = supervised.specification;
    const gaveUp = new AbortController();
    const ready = waitUntil(
      async () => {
        if (!supervised.child?.pid) {
          if (supervised.deaths >= startAttempts) gaveUp.abort(new Error(`${name} ended with ${supervised.lastExit}`));
          return false;
        }
        return isReady();
      },
      {
        what: name,
        timeoutMilliseconds: readyTimeoutMilliseconds,
        signal: AbortSignal.any([gaveUp.signal, stopped.signal]),
      },
    );
    try {
      await ready;
      supervised.established = true;
      supervised.deaths = 0;
    } catch (error) {
      supervised.wanted = false;
      await end(supervised);
      stopped.signal.throwIfAborted();
      const message = error instanceof Error ? error.message : String(error);
      throw new Error(`${message}\n${logTail(name)}\n(the log is ${join(logsFolder, `${name}.log`)})`, {
        cause: error,
      });
    }
  }

  /** Stops the process gracefully, then kills it. The caller must prevent a restart. */
  async function end(supervised: Supervised): Promise<void> {
    const { child, specification } = supervised;
    if (!child?.pid) return;
    const { stopSignal = 'SIGTERM', stopTimeoutMilliseconds = 10_000 } = specification;
    signalProcess(child.pid, stopSignal);
    const timer = setTimeout(() => {
      report(`${specification.name} did not stop within ${stopTimeoutMilliseconds / 1000} s: killed`);
      if (child.pid) signalProcess(child.pid, 'SIGKILL', true);
    }, stopTimeoutMilliseconds);
    await supervised.exited;
    clearTimeout(timer);
  }

  return {
    async start(specification) {
      stopped.signal.throwIfAborted();
      if (all.has(specification.name)) throw new Error(`${specification.name} has been started already`);
      mkdirSync(logsFolder, { recursive: true, mode: 0o700 });
      if (!watchdog) startWatchdog();
      const log = join(logsFolder, `${specification.name}.log`);
      try {
        renameSync(log, join(logsFolder, `${specification.name}.previous.log`));
      } catch {
        // There is no log of an earlier run.
      }
      const supervised: Supervised = {
        specification,
        order: all.size,
        startedAt: 0,
        deaths: 0,
        wanted: true,
        established: false,
        exited: Promise.resolve(),
        lastExit: '',
      };
      all.set(specification.name, supervised);
      spawnProcess(supervised);
      await waitFirstReady(supervised);
    },
    async stop(name) {
      const supervised = find(name);
      supervised.wanted = false;
      await end(supervised);
    },
    async startAgain(name) {
      const supervised = find(name);
      if (supervised.child) return;
      Object.assign(supervised, { wanted: true, established: false, deaths: 0 });
      spawnProcess(supervised);
      await waitFirstReady(supervised);
    },
    async kill(name) {
      const { child, exited } = find(name);
      if (!child?.pid) return;
      signalProcess(child.pid, 'SIGKILL');
      await exited;
    },
    signal(name, signal) {
      const pid = find(name).child?.pid;
      if (pid) signalProcess(pid, signal);
    },
    async waitReady(name, timeoutMilliseconds = 60_000) {
      const supervised = find(name);
      await waitUntil(() => (supervised.child?.pid ? supervised.specification.isReady() : false), {
        what: name,
        timeoutMilliseconds,
        signal: stopped.signal,
      });
    },
    pids() {
      const running = [...all.values()].flatMap(({ specification, child }) =>
        child?.pid ? [[specification.name, child.pid] as const] : [],
      );
      return Object.fromEntries(running);
    },
    async stopAll() {
      stopping = true;
      stopped.abort(new Error('the stack was stopped'));
      for (const supervised of [...all.values()].reverse()) {
        supervised.wanted = false;
        await end(supervised);
      }
      if (watchdog?.exitCode === null && watchdog.pid) {
        const gone = new Promise((resolve) => watchdog?.once('exit', resolve));
        watchdog.ref();
        watchdog.stdin?.end();
        await gone;
      }
      watchdog = undefined;
    },
  };
}
