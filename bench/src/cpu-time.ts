// CPU time of processes on Linux.
import { readdirSync, readFileSync } from 'node:fs';

/** Linux reports CPU time in hundredths of a second, whatever the kernel's tick (proc_pid_stat(5), USER_HZ). */
const microsecondsPerTick = 10_000;

/**
 * Returns the user and system CPU time in microseconds of a process and all its descendants, running or reaped.
 * Throws if there is no /proc, or if the process does not exist.
 */
export function cpuMicroseconds(pid: number): number {
  let sum = 0;
  const add = (process: number): void => {
    const { ticks } = readStat(process);
    sum += ticks * microsecondsPerTick;
    for (const child of children.get(process) ?? []) {
      try {
        add(child);
      } catch {
        // It has exited: its time has been, or will be, added to its parent.
      }
    }
  };
  const children = childrenByParent();
  add(pid);
  return sum;
}

function childrenByParent(): Map<number, number[]> {
  const children = new Map<number, number[]>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const { parent } = readStat(Number(name));
      const siblings = children.get(parent);
      if (siblings) siblings.push(Number(name));
      else children.set(parent, [Number(name)]);
    } catch {
      // It has exited.
    }
  }
  return children;
}

/** Returns a process's parent, and its ticks including those of reaped children. */
function readStat(pid: number): { parent: number; ticks: number } {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  // The second field is the program's name in parentheses, which may contain any character.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return { parent: Number(fields[1]), ticks: fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0) };
}
