// A small client of the Kubernetes API. Configuration and credentials come from @kubernetes/client-node; requests are
// implemented here, because that library's watch does not support bookmarks and it opens a TLS connection for each
// request.
import { readFile } from 'node:fs/promises';
import type { RequestOptions } from 'node:https';
import { isDeepStrictEqual } from 'node:util';
import { KubeConfig } from '@kubernetes/client-node';
import { Agent, ProxyAgent, request, type Dispatcher } from 'undici';
import { KubernetesError, type Status } from './errors.ts';

import { pathOf, type KubernetesObject, type Resource } from './resource.ts';

/** A page of objects. */
export interface ObjectList<T> {
  metadata: { resourceVersion: string; continue?: string };
  items: T[];
}

type Query = Record<string, string | number | boolean | undefined>;

interface Call {
  method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  path: string;
  query?: Query;
  body?: unknown;
  contentType?: string;
  signal?: AbortSignal | undefined;
}

/** Where requests are counted. */
interface ClientMetrics {
  clientRequests: { inc(labels: { code: string; method: string; host: string }): void };
}

/** Options of a client. */
export interface KubernetesClientOptions {
  config: KubeConfig;
  /** User agent, as shown in audit logs. */
  userAgent: string;
  metrics?: ClientMetrics;
  /** Timeout of a response in milliseconds (default 30 s). */
  timeoutMs?: number;
}

/** Lifetime of cached credentials, because token files and exec plugins rotate them. */
const credentialLifetimeMs = 10_000;

interface Credentials {
  headers: Record<string, string>;
  dispatcher: Dispatcher;
  readAt: number;
}

/** Loads a kubeconfig. Without a path, uses the pod's own configuration, else kubectl's default. */
export function loadKubeConfig(kubeconfig: string | undefined): KubeConfig {
  const config = new KubeConfig();
  if (kubeconfig) config.loadFromFile(kubeconfig);
  else if (process.env['KUBERNETES_SERVICE_HOST']) config.loadFromCluster();
  else config.loadFromDefault();
  return config;
}

/**
 * Typed requests to the Kubernetes API over keep-alive connections. Methods throw KubernetesError, or transport errors.
 */
export class KubernetesClient {
  private readonly config: KubeConfig;
  private readonly server: string;
  private readonly userAgent: string;
  private readonly metrics: ClientMetrics | undefined;
  private readonly timeoutMs: number;
  private credentials: Credentials | undefined;
  private connection: { options: object; dispatcher: Dispatcher } | undefined;

  constructor(options: KubernetesClientOptions) {
    const cluster = options.config.getCurrentCluster();
    if (!cluster) throw new Error('the kubeconfig has no current cluster');
    this.config = options.config;
    this.server = cluster.server.replace(/\/$/, '');
    this.userAgent = options.userAgent;
    this.metrics = options.metrics;
    this.timeoutMs = options.timeoutMs ?? 30_000;
  }

  /** Reads one object. */
  get<T extends KubernetesObject>(resource: Resource, namespace: string, name: string): Promise<T> {
    return this.call({ method: 'GET', path: pathOf(resource, namespace, name) });
  }

  /** Reads a page of a collection. The namespace '' means all. */
  list<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    query: Query = {},
    signal?: AbortSignal,
  ): Promise<ObjectList<T>> {
    return this.call({ method: 'GET', path: pathOf(resource, namespace), query, signal });
  }

  /** Creates an object. */
  create<T extends KubernetesObject>(resource: Resource, object: T): Promise<T> {
    const path = pathOf(resource, object.metadata.namespace ?? '');
    return this.call({ method: 'POST', path, body: object });
  }

  /**
   * Patches an object (JSON merge patch). If the patch contains metadata.resourceVersion, only that version is changed.
   */
  mergePatch<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    name: string,
    patch: object,
  ): Promise<T> {
    const path = pathOf(resource, namespace, name);
    return this.call({ method: 'PATCH', path, body: patch, contentType: 'application/merge-patch+json' });
  }

  /**
   * Applies an object or its status (server-side apply). Fields that the manager applied before and omits now are
   * removed.
   */
  apply<T extends KubernetesObject>(
    resource: Resource,
    object: T,
    options: { fieldManager: string; force: boolean; subresource?: 'status' },
  ): Promise<T> {
    const path = pathOf(resource, object.metadata.namespace ?? '', object.metadata.name);
    return this.call({
      method: 'PATCH',
      path: options.subresource ? `${path}/${options.subresource}` : path,
      query: { fieldManager: options.fieldManager, force: options.force },
      body: object,
      contentType: 'application/apply-patch+yaml',
    });
  }

  /** Deletes an object if it still has this uid. */
  async delete(resource: Resource, namespace: string, name: string, uid: string): Promise<void> {
    await this.call({ method: 'DELETE', path: pathOf(resource, namespace, name), body: { preconditions: { uid } } });
  }

  /** Opens a watch and returns its raw bytes: one JSON object per line. The caller limits idle time with the signal. */
  async watch(
    resource: Resource,
    namespace: string,
    query: Query,
    signal: AbortSignal,
  ): Promise<AsyncIterable<Buffer>> {
    const call: Call = { method: 'GET', path: pathOf(resource, namespace), query: { ...query, watch: true }, signal };
    const response = await this.send(call, 0);
    return response.body;
  }

  /** Throws if the API server does not respond. */
  async ping(signal: AbortSignal): Promise<void> {
    await this.call({ method: 'GET', path: '/version', signal });
  }

  /** Closes the keep-alive connections. */
  async close(): Promise<void> {
    await this.connection?.dispatcher.close();
  }

  private async call<T>(call: Call): Promise<T> {
    const response = await this.send(call, this.timeoutMs);
    return (await response.body.json()) as T;
  }

  private async send(call: Call, bodyTimeout: number): Promise<Dispatcher.ResponseData> {
    const response = await this.sendOnce(call, bodyTimeout);
    if (response.statusCode < 300) return response;
    const text = await response.body.text();
    // The token may have just been rotated: reread it once.
    if (response.statusCode === 401 && this.credentials) {
      this.credentials = undefined;
      const second = await this.sendOnce(call, bodyTimeout);
      if (second.statusCode < 300) return second;
      throw toError(second, await second.body.text());
    }
    throw toError(response, text);
  }

  private async sendOnce(call: Call, bodyTimeout: number): Promise<Dispatcher.ResponseData> {
    const { headers, dispatcher } = await this.authenticate();
    const url = new URL(this.server + call.path);
    for (const [name, value] of Object.entries(call.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    const body = call.body === undefined ? null : JSON.stringify(call.body);
    const count = (code: string): void => {
      this.metrics?.clientRequests.inc({ code, method: call.method, host: url.host });
    };
    try {
      const response = await request(url, {
        method: call.method,
        headers: {
          ...headers,
          accept: 'application/json',
          'user-agent': this.userAgent,
          ...(body === null ? {} : { 'content-type': call.contentType ?? 'application/json' }),
        },
        body,
        dispatcher,
        signal: call.signal ?? null,
        headersTimeout: this.timeoutMs,
        bodyTimeout,
      });
      count(String(response.statusCode));
      return response;
    } catch (error) {
      count('<error>');
      throw error;
    }
  }

  private async authenticate(): Promise<Credentials> {
    const known = this.credentials;
    if (known && Date.now() - known.readAt < credentialLifetimeMs) return known;
    const options: RequestOptions = {};
    await this.config.applyToHTTPSOptions(options);
    const { ca, cert, key, pfx, passphrase, rejectUnauthorized, servername } = options;
    const connect = { ca, cert, key, pfx, passphrase, rejectUnauthorized, servername };
    const present = Object.fromEntries(
      Object.entries(connect).filter(([, value]) => value !== undefined && value !== null),
    );
    // Running requests keep the connection with the old certificate until they end.
    if (!this.connection || !isDeepStrictEqual(this.connection.options, present)) {
      this.connection = { options: present, dispatcher: this.connect(present) };
    }
    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(options.headers ?? {})) headers[name.toLowerCase()] = String(value);
    // The library caches token files for up to a minute, which is too long after a 401.
    const provider = this.config.getCurrentUser()?.authProvider as { config?: { tokenFile?: string } } | undefined;
    const tokenFile = provider?.config?.tokenFile;
    if (tokenFile) headers['authorization'] = `Bearer ${(await readFile(tokenFile, 'utf8')).trim()}`;
    if (options.auth) headers['authorization'] = `Basic ${Buffer.from(options.auth).toString('base64')}`;
    this.credentials = { headers, dispatcher: this.connection.dispatcher, readAt: Date.now() };
    return this.credentials;
  }

  private connect(tls: object): Dispatcher {
    const proxy = this.config.getCurrentCluster()?.proxyUrl;
    if (proxy) return new ProxyAgent({ uri: proxy, requestTls: tls });
    return new Agent({ connect: { ...tls, timeout: 10_000, keepAlive: true, keepAliveInitialDelay: 15_000 } });
  }
}

function toError(response: Dispatcher.ResponseData, text: string): KubernetesError {
  const retryAfter = response.headers['retry-after'];
  let status: Status;
  try {
    status = JSON.parse(text) as Status;
  } catch {
    status = { message: text.slice(0, 200) || `the Kubernetes API returned ${response.statusCode}` };
  }
  return new KubernetesError(response.statusCode, status, Array.isArray(retryAfter) ? retryAfter[0] : retryAfter);
}
