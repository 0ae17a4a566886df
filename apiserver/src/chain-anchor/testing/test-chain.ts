// The local chain as a separate process, used over HTTP as the data plane and its users do. For tests.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';

const program = path.resolve(import.meta.dirname, '../../../../dev/devchain/main.ts');

export interface TestChain {
  /** Base URL of the routes of the processor and the header source. */
  readonly url: string;
  /** Posts to a control route (`/dev/…`) and returns its JSON. */
  control(route: string, body?: Record<string, unknown>): Promise<Record<string, unknown>>;
  clearFaults(): Promise<void>;
  state(): Promise<Record<string, unknown>>;
  stop(): Promise<void>;
}

/** Starts a new chain; it mines only on request unless `blockMilliseconds` is given. */
export async function startTestChain(
  options: { callbackSecret?: string; blockMilliseconds?: number } = {},
): Promise<TestChain> {
  const folder = await mkdtemp(path.join(tmpdir(), 'kellet-devchain-'));
  const child = spawn(process.execPath, [program], {
    env: {
      ...process.env,
      KELLET_DEVCHAIN_PORT: '0',
      KELLET_DEVCHAIN_DIR: folder,
      KELLET_DEVCHAIN_BLOCK_MS: String(options.blockMilliseconds ?? 3_600_000),
      KELLET_DEVCHAIN_CALLBACK_MS: '20',
      KELLET_CALLBACK_HMAC_SECRET: options.callbackSecret ?? '',
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const { devchain: url } = JSON.parse(line) as { devchain: string };
  const call = async (method: string, route: string, body?: Record<string, unknown>) => {
    const response = await fetch(`${url}/dev/${route}`, {
      method,
      headers: { 'content-type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    });
    const result = (await response.json()) as Record<string, unknown>;
    if (!response.ok) throw new Error(`devchain ${route}: ${JSON.stringify(result)}`);
    return result;
  };
  return {
    url,
    control: (route, body = {}) => call('POST', route, body),
    clearFaults: async () => void (await call('DELETE', 'faults')),
    state: () => call('GET', 'state'),
    async stop() {
      child.kill('SIGTERM');
      await exited;
      await rm(folder, { recursive: true, force: true });
    },
  };
}
