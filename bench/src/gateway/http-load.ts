// Generates HTTP/1.1 load in a separate process, so that its cost is not measured.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';

/** Load options. */
export interface Load {
  readonly host: string;
  readonly port: number;
  /** Complete requests with head and body, sent in turn. */
  readonly requests: readonly string[];
  /** Text that each response must contain. */
  readonly expected?: string;
  readonly connections: number;
  readonly seconds: number;
  /**
   * Requests per second, independent of responses. If undefined, each connection sends as soon as it gets a response.
   */
  readonly perSecond?: number;
}

/** Result. */
export interface LoadResult {
  readonly replies: number;
  /** Responses per second. */
  readonly perSecond: number;
  /** Latencies from the due time of a request to its complete response, in milliseconds. */
  readonly p50: number;
  readonly p99: number;
  /** CPU time of the generator per second. */
  readonly cores: number;
}

/** The generator's process. */
export class HttpLoad {
  private readonly generator: ChildProcess = fork(join(import.meta.dirname, 'http-load-process.ts'), {
    serialization: 'advanced',
  });

  /** Resolves when the time is over. Rejects if a response is not 200 or not as expected. */
  async run(load: Load): Promise<LoadResult> {
    const abandon = new AbortController();
    const { signal } = abandon;
    const failed = once(this.generator, 'exit', { signal }).then(() =>
      Promise.reject(new Error('the load generator has failed')),
    );
    failed.catch(() => undefined);
    try {
      this.generator.send(load);
      const [result] = (await Promise.race([once(this.generator, 'message', { signal }), failed])) as [LoadResult];
      return result;
    } finally {
      abandon.abort();
    }
  }

  /** Stops the process. */
  close(): void {
    this.generator.disconnect();
  }
}

/** Serialises a GET request. */
export function getRequest(path: string, headers: Readonly<Record<string, string>>): string {
  return `GET ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\n${lines(headers)}\r\n`;
}

/** Serialises a POST request with JSON. */
export function postRequest(path: string, headers: Readonly<Record<string, string>>, body: string): string {
  const length = Buffer.byteLength(body);
  const head = `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: ${length}`;
  return `${head}\r\n${lines(headers)}\r\n${body}`;
}

const lines = (headers: Readonly<Record<string, string>>): string =>
  Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
