// Runs kellet-apiserver tenant … against the stack of the tests.
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { checkout } from '../../dev/stack/paths.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';

/** Runs the command and returns its output. Rejects with the output if it fails. */
export async function tenantCommand(...args: string[]): Promise<string> {
  const { databaseUrl, natsUrl, kubeconfig } = stack().info;
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [join(checkout, 'apiserver/src/main.ts'), 'tenant', ...args],
    {
      env: {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KUBECONFIG: kubeconfig,
        KELLET_DATABASE_URL: databaseUrl,
        KELLET_NATS_URL: natsUrl,
        KELLET_CONTROL_SECRET: 'unused'.repeat(6),
        KELLET_JWT_PRIVATE_KEY: 'unused',
        KELLET_CALLBACK_HMAC_SECRET: 'unused',
        KELLET_COLD_URL: pathToFileURL(join(checkout, '.kellet/test/cold')).href,
      },
    },
  );
  return stdout;
}
