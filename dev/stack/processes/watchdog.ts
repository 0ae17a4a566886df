// Stops a supervisor's processes if the supervisor is killed (SIGKILL, out of memory). Run as: node watchdog.ts
// RECORDS-FOLDER OWNER, with a pipe from the supervisor as standard input, which the kernel closes when the supervisor
// dies.
import { endRecordedProcesses } from './process-table.ts';

const [folder, owner] = process.argv.slice(2);
if (!folder || !owner) throw new Error('usage: watchdog.ts RECORDS-FOLDER OWNER');

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);
process.stdin.resume();
await new Promise((resolve) => process.stdin.once('close', resolve));
await endRecordedProcesses(folder, { owner });
