// Runs kellet-verify as a command in a process without network access.
import { execFile } from 'node:child_process';
import { join } from 'node:path';

/** The root of this checkout. */
const checkout = join(import.meta.dirname, '../..');

const program = join(checkout, 'verify/src/cli.ts');

/** Result of the command. */
export interface CommandResult {
  code: number;
  stdout: string;
  stderr: string;
}

function run(args: readonly string[]): Promise<CommandResult> {
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: checkout, maxBuffer: 64 << 20 }, (error, stdout, stderr) =>
      resolve({ code: error ? Number(error.code ?? 1) : 0, stdout, stderr }),
    );
  });
}

/**
 * Runs `kellet-verify BUNDLE …` in the checkout without network access (Node's permission model allows only reading
 * files).
 */
export function verifyOffline(bundle: string, ...args: readonly string[]): Promise<CommandResult> {
  return run(['--permission', '--allow-fs-read=*', program, bundle, ...args]);
}

/** Runs `kellet-verify headers`. Returns the text of a headers file from this height up to the tip. */
export async function fetchHeadersFile(headersUrl: string, from: number): Promise<string> {
  const { code, stdout, stderr } = await run([program, 'headers', '--headers-url', headersUrl, '--from', String(from)]);
  if (code !== 0) throw new Error(`kellet-verify headers: ${stderr.trim()}`);
  return stdout;
}
