// A proxy in front of the Kubernetes API server that injects network and server faults.
import { once } from 'node:events';
import {
  createServer,
  type IncomingMessage,
  request as plainRequest,
  type Server,
  type ServerResponse,
} from 'node:http';
import { Agent, request as secureRequest } from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { Readable } from 'node:stream';
import { KubeConfig } from '@kubernetes/client-node';

/**
 * Faults of a request: `frozen` accepts it and never responds, like a half-open connection; `unanswered` executes it
 * and resets the connection; `late` delays it by this many milliseconds, even if the client has disconnected.
 */
export type Fault = 'none' | 'frozen' | 'unanswered' | { status: number; reason?: string } | { late: number };

/** A plain-HTTP proxy in front of an API server, with the permissions of its kubeconfig. */
export class FaultProxy {
  /** Fault of further requests. */
  fault: Fault = 'none';
  /** Affected methods; all by default. */
  methods: readonly string[] | undefined;
  /** Called when an affected request arrives. */
  onFault: (() => void) | undefined;
  /** Paths with queries, in order of arrival. */
  readonly requests: string[] = [];
  private readonly target: URL;
  private readonly config: KubeConfig;
  private readonly sockets = new Set<Socket>();
  private readonly streams = new Set<IncomingMessage>();
  private agent: Agent | undefined;
  private server: Server | undefined;
  private port = 0;

  constructor(kubeconfig: string) {
    this.config = new KubeConfig();
    this.config.loadFromFile(kubeconfig);
    this.target = new URL(this.config.getCurrentCluster()!.server);
  }

  /** Returns a kubeconfig for the proxy. */
  clientConfig(): KubeConfig {
    const config = new KubeConfig();
    config.loadFromClusterAndUser(
      { name: 'proxy', server: `http://127.0.0.1:${this.port}`, skipTLSVerify: true },
      { name: 'proxy' },
    );
    return config;
  }

  /** Starts listening, on the same port after each `stop`. */
  async start(): Promise<void> {
    this.agent = new Agent({ keepAlive: false });
    this.server = createServer((request, response) => void this.forward(request, response));
    this.server.on('connection', (socket: Socket) => {
      this.sockets.add(socket);
      socket.on('close', () => this.sockets.delete(socket));
    });
    this.server.listen(this.port, '127.0.0.1');
    await once(this.server, 'listening');
    this.port = (this.server.address() as AddressInfo).port;
  }

  /** Refuses connections like a stopped server, and resets open ones. */
  async stop(): Promise<void> {
    const server = this.server;
    if (!server) return;
    this.server = undefined;
    server.close();
    this.reset();
    await once(server, 'close');
    this.agent?.destroy();
  }

  /** Resets all open connections. */
  reset(): void {
    for (const socket of this.sockets) socket.resetAndDestroy();
  }

  /** Blocks all data on open streams without closing them. */
  freezeStreams(): void {
    for (const stream of this.streams) stream.unpipe();
  }

  private async forward(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.requests.push(request.url ?? '');
    const fault = this.methods && !this.methods.includes(request.method ?? '') ? 'none' : this.fault;
    if (fault !== 'none') this.onFault?.();
    if (fault === 'frozen') return;
    if (typeof fault === 'object' && 'late' in fault) return this.deliverLate(request, fault.late);
    if (typeof fault === 'object') {
      const { status, reason } = fault;
      const body = { kind: 'Status', apiVersion: 'v1', status: 'Failure', code: status, reason, message: 'injected' };
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
      return;
    }
    await this.deliver(request, response, request, fault === 'unanswered');
  }

  /** Receives the whole request, and forwards it when its client may have disconnected. */
  private async deliverLate(request: IncomingMessage, milliseconds: number): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    setTimeout(() => void this.deliver(request, undefined, Readable.from(chunks), true), milliseconds);
  }

  private async deliver(
    request: IncomingMessage,
    response: ServerResponse | undefined,
    body: Readable,
    isUnanswered: boolean,
  ): Promise<void> {
    const options = { headers: { ...request.headers, host: this.target.host }, method: request.method };
    const secure = { ...options, agent: this.agent };
    await this.config.applyToHTTPSOptions(secure);
    const url = new URL(request.url ?? '/', this.target);
    const upstream =
      url.protocol === 'https:'
        ? secureRequest(url, { ...secure, headers: { ...options.headers, ...secure.headers }, agent: false })
        : plainRequest(url, options);
    upstream.on('response', (result) => {
      if (isUnanswered || !response) {
        result.resume().on('end', () => response?.destroy());
        return;
      }
      this.streams.add(result);
      result.on('close', () => this.streams.delete(result));
      result.on('error', () => response.destroy());
      response.writeHead(result.statusCode ?? 502, result.headers);
      response.flushHeaders();
      result.pipe(response);
    });
    upstream.on('error', () => response?.destroy());
    if (!isUnanswered) response?.on('close', () => upstream.destroy());
    body.pipe(upstream);
  }
}
