// kellet-verify as a command, in a process that is not allowed to use the network.
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { checkout } from '../stack/paths.ts';

const program = join(checkout, 'verify/src/cli.ts');

/** How the command ended. */
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

/** `kellet-verify BUNDLE …`, run in the checkout, with the network shut off (Node's permission model: files may be read, nothing else). */
export function verifyOffline(bundle: string, ...args: readonly string[]): Promise<CommandResult> {
  return run(['--permission', '--allow-fs-read=*', program, bundle, ...args]);
}

/** `kellet-verify headers`: the text of a headers file from this height up to the source's tip. */
export async function fetchHeadersFile(headersUrl: string, from: number): Promise<string> {
  const { code, stdout, stderr } = await run([program, 'headers', '--headers-url', headersUrl, '--from', String(from)]);
  if (code !== 0) throw new Error(`kellet-verify headers: ${stderr.trim()}`);
  return stdout;
}
