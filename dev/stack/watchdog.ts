// Ends a supervisor's processes when the supervisor is killed in a way it cannot answer (kill -9, out of memory).
// Run as: node watchdog.ts RECORDS-FOLDER OWNER, with a pipe from the supervisor as standard input: the kernel closes
// the pipe whatever the supervisor dies of.
import { endRecordedProcesses } from './process-table.ts';

const [folder, owner] = process.argv.slice(2);
if (!folder || !owner) throw new Error('usage: watchdog.ts RECORDS-FOLDER OWNER');

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => undefined);
process.stdin.resume();
await new Promise((resolve) => process.stdin.once('close', resolve));
await endRecordedProcesses(folder, { owner });
