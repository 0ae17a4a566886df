// Which processes a supervisor has started, kept in files, so that they can be found and ended when it was killed.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** A started process. `pid` and `identity` together name it for good: a pid alone is given out again. */
export interface ProcessRecord {
  name: string;
  pid: number;
  identity: string;
  /** The supervisor that started it, as `<pid>/<identity>`. */
  owner: string;
  /** Position in the order of starting; processes are ended in the reverse order. */
  order: number;
  /** The signal that asks it to end in good order. */
  stopSignal: NodeJS.Signals;
}

/** What tells one process from a later one with the same pid: its start time. Undefined when it is gone or a zombie. */
export function processIdentity(pid: number): string | undefined {
  if (process.platform === 'linux') {
    try {
      // proc(5): the command name may hold spaces and brackets, so fields are counted from the last bracket.
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      // While other threads still end, the first one is a zombie already and the process keeps its locks and ports.
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

/** This process's name as an owner. */
export function ownerOf(pid: number): string {
  return `${pid}/${processIdentity(pid) ?? ''}`;
}

/** Reports whether the recorded process, and not a later one with its pid, is running. */
export function isRunning(record: Pick<ProcessRecord, 'pid' | 'identity'>): boolean {
  return processIdentity(record.pid) === record.identity;
}

/** Writes the record of a process; the file is whole or absent, never half. */
export function recordProcess(folder: string, record: ProcessRecord): void {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const path = join(folder, `${record.name}.json`);
  writeFileSync(`${path}.${process.pid}.new`, JSON.stringify(record), { mode: 0o600 });
  renameSync(`${path}.${process.pid}.new`, path);
}

/** Removes the record of a process that has ended. */
export function forgetProcess(folder: string, name: string): void {
  rmSync(join(folder, `${name}.json`), { force: true });
}

/** All records of a folder, in the order of starting; unreadable files are left out. */
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

/** Sends a signal to a process, or with `group` to its whole process group; one that is gone already is no error. */
export function signalProcess(pid: number, signal: NodeJS.Signals, group = false): void {
  try {
    process.kill(group ? -pid : pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/**
 * Ends every recorded process that still runs, the last started first, and removes the records. One that does not end
 * within `patienceMilliseconds` is killed with its process group. With `owner`, only processes of that supervisor.
 * Returns the names of those that were still running.
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
