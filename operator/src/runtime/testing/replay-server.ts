// For tests: an HTTP server that gives recorded answers in the order it was told, cut into chunks and broken off as wanted.
import { once } from 'node:events';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { KubeConfig } from '@kubernetes/client-node';

/** An answer to one request. */
export interface Answer {
  status?: number;
  headers?: Record<string, string>;
  body: string | Buffer;
  /** Bytes a chunk, each written by itself; absent: all at once. */
  chunkBytes?: number;
  /** How the answer ends: in good order (default), by a reset connection, or not at all. */
  end?: 'finish' | 'reset' | 'hang';
  /** Called when the request has come, before it is answered. */
  before?: () => void;
}

/** A request as it came. */
export interface SeenRequest {
  path: string;
  query: URLSearchParams;
  authorization: string | undefined;
}

/** Answers each request with the next answer; when they run out, the last is given again. */
export class ReplayServer {
  readonly requests: SeenRequest[] = [];
  readonly #answers: Answer[];
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;

  constructor(answers: Answer[]) {
    this.#answers = answers;
    this.#server = createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost');
      const { authorization } = request.headers;
      this.requests.push({ path: pathname, query: searchParams, authorization });
      const answer = this.#answers[Math.min(this.requests.length, this.#answers.length) - 1]!;
      answer.before?.();
      void this.#give(answer, response);
    });
    this.#server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('close', () => this.#sockets.delete(socket));
    });
  }

  /** Listens on a free port. Returns a kubeconfig that leads here, with the token of a file when one is given. */
  async start(tokenFile?: string): Promise<KubeConfig> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    const { port } = this.#server.address() as AddressInfo;
    const config = new KubeConfig();
    const user = { name: 'replay', ...(tokenFile && { authProvider: { name: 'tokenFile', config: { tokenFile } } }) };
    config.loadFromClusterAndUser({ name: 'replay', server: `http://127.0.0.1:${port}`, skipTLSVerify: true }, user);
    return config;
  }

  /** Requests that asked for a watch. */
  get watches(): SeenRequest[] {
    return this.requests.filter(({ query }) => query.get('watch') === 'true');
  }

  /** Requests that asked for a list. */
  get lists(): SeenRequest[] {
    return this.requests.filter(({ query }) => query.get('watch') !== 'true');
  }

  /** Ends it and every connection. */
  async stop(): Promise<void> {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await once(this.#server, 'close');
  }

  async #give({ status = 200, headers, body, chunkBytes, end }: Answer, response: ServerResponse): Promise<void> {
    response.on('error', () => undefined);
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.flushHeaders();
    const bytes = Buffer.from(body);
    for (let at = 0; at < bytes.length && !response.destroyed; at += chunkBytes ?? bytes.length) {
      response.write(bytes.subarray(at, at + (chunkBytes ?? bytes.length)));
      // Each chunk leaves by itself: a turn of the loop is enough for the kernel to hand it over.
      if (chunkBytes !== undefined) await new Promise((resolve) => setImmediate(resolve));
    }
    if (end === 'reset') {
      // What was written is to be read before the connection breaks.
      await delay(20);
      response.socket?.resetAndDestroy();
    } else if (end !== 'hang') response.end();
  }
}
