// The processor time that processes have used, as Linux counts it.
import { readdirSync, readFileSync } from 'node:fs';

/** Linux shows processor time in hundredths of a second, whatever the kernel's own tick (proc_pid_stat(5), USER_HZ). */
const microsecondsPerTick = 10_000;

/**
 * Microseconds of processor time of a process and of all that descend from it, running or reaped; user and system together.
 * Throws where there is no /proc, and for a process that is gone.
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
        // It has ended meanwhile: its parent has its time now, or will when it is looked at again.
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
      // It has ended meanwhile.
    }
  }
  return children;
}

/** A process's parent, and its own ticks with those of its reaped children. */
function readStat(pid: number): { parent: number; ticks: number } {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  // The second field is the program's name in parentheses, which may hold anything.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return { parent: Number(fields[1]), ticks: fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0) };
}
