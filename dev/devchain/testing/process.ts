// Runs devchain as a separate process, used over HTTP.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

export interface DevchainProcess {
  readonly url: string;
  readonly pid: number;
  /** Sends a JSON request; `body` is sent as JSON unless it is text or bytes. */
  call(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<DevchainReply>;
  /** Sends a signal and resolves with the exit code, null after a kill. */
  end(signal: 'SIGTERM' | 'SIGKILL'): Promise<number | null>;
}

export interface DevchainReply {
  readonly status: number;
  readonly headers: Headers;
  readonly bytes: Uint8Array;
  /** The body as JSON; undefined if it is not. */
  readonly json: Record<string, unknown>;
}

/** Starts devchain in a folder; resolves when it listens. By default it mines only on request. */
export async function startDevchain(
  directory: string,
  environment: Record<string, string> = {},
): Promise<DevchainProcess> {
  const child: ChildProcess = spawn(process.execPath, [join(import.meta.dirname, '..', 'main.ts')], {
    env: {
      ...process.env,
      KELLET_DEVCHAIN_PORT: '0',
      KELLET_DEVCHAIN_DIR: directory,
      KELLET_DEVCHAIN_BLOCK_MS: '3600000',
      KELLET_DEVCHAIN_CALLBACK_MS: '20',
      ...environment,
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit') as Promise<[number | null]>;
  const lines = createInterface({ input: child.stdout! });
  const first = await Promise.race([once(lines, 'line') as Promise<[string]>, exited.then(([code]) => code)]);
  if (!Array.isArray(first)) throw new Error(`devchain ended with ${first} before it listened`);
  const { devchain: url } = JSON.parse(first[0]) as { devchain: string };
  return {
    url,
    pid: child.pid!,
    async call(method, path, body, headers = {}) {
      const isRaw = typeof body === 'string' || body instanceof Uint8Array;
      const content = body === undefined ? undefined : isRaw ? (body as string) : JSON.stringify(body);
      const response = await fetch(`${url}${path}`, {
        method,
        headers: { ...(content === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
        body: content ?? null,
      });
      const bytes = new Uint8Array(await response.arrayBuffer());
      return { status: response.status, headers: response.headers, bytes, json: asJson(response, bytes) };
    },
    async end(signal) {
      child.kill(signal);
      return (await exited)[0];
    },
  };
}

function asJson(response: Response, bytes: Uint8Array): Record<string, unknown> {
  if (!response.headers.get('content-type')?.startsWith('application/json')) return {};
  return JSON.parse(Buffer.from(bytes).toString('utf8')) as Record<string, unknown>;
}

/** Calls `ask` every 20 ms until its result is not undefined. */
export async function until<T>(what: string, ask: () => T | undefined | Promise<T | undefined>): Promise<T> {
  const deadline = Date.now() + 10_000;
  for (;;) {
    const result = await ask();
    if (result !== undefined) return result;
    if (Date.now() > deadline) throw new Error(`timed out waiting for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
