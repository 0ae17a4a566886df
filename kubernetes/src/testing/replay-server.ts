// For tests: an HTTP server that replays recorded responses, optionally in chunks or with an interrupted connection.
import { once } from 'node:events';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { KubeConfig } from '@kubernetes/client-node';

/** Response to a request. */
export interface Reply {
  status?: number;
  headers?: Record<string, string>;
  body: string | Buffer;
  /** Bytes per chunk, each written separately; by default all at once. */
  chunkBytes?: number;
  /** How the response ends: normally (default), with a connection reset, or not at all. */
  end?: 'finish' | 'reset' | 'hang';
  /** Called when the request has arrived, before the response. */
  before?: () => void;
}

/** A received request. */
export interface SeenRequest {
  path: string;
  query: URLSearchParams;
  authorization: string | undefined;
}

/** Responds to each request with the next response, repeating the last one. */
export class ReplayServer {
  readonly requests: SeenRequest[] = [];
  private readonly replies: Reply[];
  private readonly sockets = new Set<Socket>();
  private readonly server: Server;

  constructor(replies: Reply[]) {
    this.replies = replies;
    this.server = createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost');
      const { authorization } = request.headers;
      this.requests.push({ path: pathname, query: searchParams, authorization });
      const reply = this.replies[Math.min(this.requests.length, this.replies.length) - 1]!;
      reply.before?.();
      void this.give(reply, response);
    });
    this.server.on('connection', (socket: Socket) => {
      this.sockets.add(socket);
      socket.setNoDelay(true);
      socket.on('close', () => this.sockets.delete(socket));
    });
  }

  /** Listens on a free port. Returns a kubeconfig for the server, optionally with a token file. */
  async start(tokenFile?: string): Promise<KubeConfig> {
    this.server.listen(0, '127.0.0.1');
    await once(this.server, 'listening');
    const { port } = this.server.address() as AddressInfo;
    const config = new KubeConfig();
    const user = { name: 'replay', ...(tokenFile && { authProvider: { name: 'tokenFile', config: { tokenFile } } }) };
    config.loadFromClusterAndUser({ name: 'replay', server: `http://127.0.0.1:${port}`, skipTLSVerify: true }, user);
    return config;
  }

  /** Watch requests. */
  get watches(): SeenRequest[] {
    return this.requests.filter(({ query }) => query.get('watch') === 'true');
  }

  /** List requests. */
  get lists(): SeenRequest[] {
    return this.requests.filter(({ query }) => query.get('watch') !== 'true');
  }

  /** Closes the server and all connections. */
  async stop(): Promise<void> {
    this.server.close();
    for (const socket of this.sockets) socket.destroy();
    await once(this.server, 'close');
  }

  private async give({ status = 200, headers, body, chunkBytes, end }: Reply, response: ServerResponse): Promise<void> {
    response.on('error', () => undefined);
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.flushHeaders();
    const bytes = Buffer.from(body);
    for (let at = 0; at < bytes.length && !response.destroyed; at += chunkBytes ?? bytes.length) {
      response.write(bytes.subarray(at, at + (chunkBytes ?? bytes.length)));
      // One turn of the event loop is enough for the kernel to deliver each chunk separately.
      if (chunkBytes !== undefined) await new Promise((resolve) => setImmediate(resolve));
    }
    if (end === 'reset') {
      // Lets the client read what was written before the reset.
      await delay(20);
      response.socket?.resetAndDestroy();
    } else if (end !== 'hang') response.end();
  }
}
