// Runs devchain, the local chain.
import { join } from 'node:path';
import { checkout } from '../paths.ts';
import { httpStatus } from '../processes/probe.ts';
import type { Supervisor } from '../processes/supervisor.ts';
import type { Secret } from '../secrets.ts';

export interface DevchainOptions {
  supervisor: Supervisor;
  /** Holds the chain's journal, kept between runs. */
  folder: string;
  port: number;
  callbackSecret: Secret;
  /** Milliseconds between blocks while transactions wait; devchain's default if absent. */
  blockMilliseconds?: string | undefined;
  /** File with the headers that the chain continues. */
  headersFile?: string | undefined;
}

/** Starts devchain under the supervisor (process `devchain`) and resolves with its base URL. */
export async function startDevchain(options: DevchainOptions): Promise<string> {
  const { supervisor, folder, port, callbackSecret, blockMilliseconds, headersFile } = options;
  const url = `http://127.0.0.1:${port}`;
  await supervisor.start({
    name: 'devchain',
    command: process.execPath,
    args: [join(checkout, 'dev/devchain/main.ts')],
    environment: {
      KELLET_DEVCHAIN_PORT: String(port),
      KELLET_DEVCHAIN_DIR: folder,
      KELLET_DEVCHAIN_BLOCK_MS: blockMilliseconds,
      KELLET_DEVCHAIN_HEADERS_FILE: headersFile,
      KELLET_CALLBACK_HMAC_SECRET: undefined,
      KELLET_CALLBACK_HMAC_SECRET_FILE: callbackSecret.path,
    },
    isReady: async () => (await httpStatus(`${url}/dev/state`)) === 200,
  });
  return url;
}
