// Records the processes of a supervisor in files, so that they can be found and stopped if it is killed.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** A started process, identified by `pid` and `identity`, because pids are reused. */
export interface ProcessRecord {
  name: string;
  pid: number;
  identity: string;
  /** The supervisor that started it, as `<pid>/<identity>`. */
  owner: string;
  /** Position in the start order; processes are stopped in reverse order. */
  order: number;
  /** Signal for a graceful shutdown. */
  stopSignal: NodeJS.Signals;
}

/**
 * Returns the start time, which distinguishes a process from a later one with the same pid; undefined if it has exited.
 */
export function processIdentity(pid: number): string | undefined {
  if (process.platform === 'linux') {
    try {
      // proc(5): the command name may hold spaces and brackets, so fields are counted from the last bracket.
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      // While other threads still exit, the first one is already a zombie, but the process keeps its locks and ports.
      const ended = fields[0] === 'X' || (fields[0] === 'Z' && Number(fields[17]) <= 1);
      return ended ? undefined : fields[19];
    } catch {
      return undefined;
    }
  }
  try {
    const [state, ...started] = execFileSync('ps', ['-o', 'stat=,lstart=', '-p', String(pid)], { encoding: 'utf8' })
      .trim()
      .split(/\s+/);
    return !state || state.startsWith('Z') ? undefined : started.join(' ');
  } catch {
    return undefined;
  }
}

/** Returns the owner name of this process. */
export function ownerOf(pid: number): string {
  return `${pid}/${processIdentity(pid) ?? ''}`;
}

/** Reports whether the recorded process, and not a later one with its pid, is running. */
function isRunning(record: Pick<ProcessRecord, 'pid' | 'identity'>): boolean {
  return processIdentity(record.pid) === record.identity;
}

/** Writes the record of a process atomically. */
export function recordProcess(folder: string, record: ProcessRecord): void {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const path = join(folder, `${record.name}.json`);
  writeFileSync(`${path}.${process.pid}.new`, JSON.stringify(record), { mode: 0o600 });
  renameSync(`${path}.${process.pid}.new`, path);
}

/** Removes the record of an exited process. */
export function forgetProcess(folder: string, name: string): void {
  rmSync(join(folder, `${name}.json`), { force: true });
}

/** Returns all records of a folder in start order, skipping unreadable files. */
export function recordedProcesses(folder: string): ProcessRecord[] {
  let files: string[];
  try {
    files = readdirSync(folder).filter((file) => file.endsWith('.json'));
  } catch {
    return [];
  }
  const records = files.flatMap((file) => {
    try {
      return [JSON.parse(readFileSync(join(folder, file), 'utf8')) as ProcessRecord];
    } catch {
      return [];
    }
  });
  return records.sort((a, b) => a.order - b.order);
}

/** Sends a signal to a process, or with `group` to its process group. Does nothing if it has exited. */
export function signalProcess(pid: number, signal: NodeJS.Signals, group = false): void {
  try {
    process.kill(group ? -pid : pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/**
 * Stops every recorded process that is still running, the last started first, and removes the records. A process that
 * does not exit within `patienceMilliseconds` is killed with its process group. With `owner`, only processes of that
 * supervisor. Returns the names of those that were still running.
 */
export async function endRecordedProcesses(
  folder: string,
  { owner, patienceMilliseconds = 8_000 }: { owner?: string; patienceMilliseconds?: number } = {},
): Promise<string[]> {
  const ended: string[] = [];
  const records = recordedProcesses(folder).filter((record) => owner === undefined || record.owner === owner);
  for (const record of records.reverse()) {
    if (isRunning(record)) {
      ended.push(record.name);
      signalProcess(record.pid, record.stopSignal);
      const deadline = performance.now() + patienceMilliseconds;
      while (isRunning(record) && performance.now() < deadline) await sleep(50);
      if (isRunning(record)) signalProcess(record.pid, 'SIGKILL', true);
      while (isRunning(record)) await sleep(20);
    }
    forgetProcess(folder, record.name);
  }
  return ended;
}
