// The command that turns points cold, in a process of its own, as an administrator runs it beside the stack.
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { checkout } from '../../dev/stack/paths.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';

/** Where the stack of the tests keeps cold points. */
export const coldFolder = join(checkout, '.kellet/test/cold');

/** Turns every point cold and returns what the command wrote. Rejects if it fails. */
export async function runCold(): Promise<string> {
  const { databaseUrl, natsUrl } = stack().info;
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [join(checkout, 'apiserver/src/main.ts'), 'cold', 'run', '--all'],
    {
      env: {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KELLET_DATABASE_URL: databaseUrl,
        KELLET_NATS_URL: natsUrl,
        KELLET_CONTROL_SECRET: 'unused'.repeat(6),
        KELLET_JWT_PRIVATE_KEY: 'unused',
        KELLET_CALLBACK_HMAC_SECRET: 'unused',
        KELLET_COLD_URL: pathToFileURL(coldFolder).href,
      },
    },
  );
  return stdout;
}
