// `make audit`: asks the database of advisories about the packages that are shipped. Not a part of the gate, which runs without a
// network.
import { spawnSync } from 'node:child_process';
import { judge } from './audit-report.ts';

// The command fails if there are advisories too; its report says which it is.
const { stdout } = spawnSync('npm', ['audit', '--omit=dev', '--json'], {
  encoding: 'utf8',
  maxBuffer: 64 * 1024 * 1024,
  timeout: 120_000,
});
const { code, lines } = judge(stdout ?? '');
for (const line of lines) console.log(line);
process.exitCode = code;
