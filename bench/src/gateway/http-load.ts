// Asks a server over HTTP/1.1 from a process of its own, so that asking is no part of what is measured.
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';

/** What is asked for. */
export interface Load {
  readonly host: string;
  readonly port: number;
  /** Whole requests, head and body; they are sent in turn. */
  readonly requests: readonly string[];
  readonly connections: number;
  readonly seconds: number;
  /** Requests a second whatever the answers take; undefined: each connection asks again as soon as it is answered. */
  readonly perSecond?: number;
}

/** What came of it. */
export interface LoadResult {
  readonly answers: number;
  /** From when a request was due until its answer was whole, milliseconds. */
  readonly p50: number;
  readonly p99: number;
}

/** The generator's process. */
export class HttpLoad {
  private readonly generator: ChildProcess = fork(join(import.meta.dirname, 'http-load-process.ts'));

  /** Resolves when the time is over. Rejects when an answer was not 200. */
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

  /** Ends the process. */
  close(): void {
    this.generator.disconnect();
  }
}

/** A GET as it goes over the wire. */
export function getRequest(path: string, headers: Readonly<Record<string, string>>): string {
  return `GET ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\n${lines(headers)}\r\n`;
}

/** A POST of JSON as it goes over the wire. */
export function postRequest(path: string, headers: Readonly<Record<string, string>>, body: string): string {
  const length = Buffer.byteLength(body);
  const head = `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: ${length}`;
  return `${head}\r\n${lines(headers)}\r\n${body}`;
}

const lines = (headers: Readonly<Record<string, string>>): string =>
  Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
