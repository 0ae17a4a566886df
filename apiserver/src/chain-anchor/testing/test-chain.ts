// A new local chain for a test, in a process of its own, with its control routes as functions.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { startDevchain } from '../../../../dev/devchain/testing/process.ts';

type Json = Record<string, unknown>;

export interface TestChain {
  /** Base URL of the routes of the processor and the header source. */
  readonly url: string;
  /** Posts to a control route (`/dev/…`) and returns its JSON. */
  control(route: string, body?: Json): Promise<Json>;
  clearFaults(): Promise<void>;
  state(): Promise<Json>;
  stop(): Promise<void>;
}

/** Starts a new chain; it mines only on request unless `blockMilliseconds` is given. */
export async function startTestChain(
  options: { callbackSecret?: string; blockMilliseconds?: number } = {},
): Promise<TestChain> {
  const folder = await mkdtemp(path.join(tmpdir(), 'kellet-devchain-'));
  const { callbackSecret = '', blockMilliseconds } = options;
  const devchain = await startDevchain(folder, {
    KELLET_CALLBACK_HMAC_SECRET: callbackSecret,
    ...(blockMilliseconds !== undefined && { KELLET_DEVCHAIN_BLOCK_MS: String(blockMilliseconds) }),
  });
  const call = async (method: string, route: string, body?: Json) => {
    const { status, json } = await devchain.call(method, `/dev/${route}`, body);
    if (status >= 400) throw new Error(`devchain ${route}: ${JSON.stringify(json)}`);
    return json;
  };
  return {
    url: devchain.url,
    control: (route, body = {}) => call('POST', route, body),
    clearFaults: async () => void (await call('DELETE', 'faults')),
    state: () => call('GET', 'state'),
    async stop() {
      await devchain.end('SIGTERM');
      await rm(folder, { recursive: true, force: true });
    },
  };
}
