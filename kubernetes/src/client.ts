// A small client of the Kubernetes API. Objects are sent and returned as they are: no field is dropped because a type does
// not know it. Nothing is retried except after a 401.
import type { KubeConfig } from '@kubernetes/client-node';
import { type Dispatcher, request as send } from 'undici';
import { Connection } from './connection.ts';
import { KubernetesError, responseError, type Status, transportError } from './errors.ts';
import { jsonLines } from './json-lines.ts';
import { type KubernetesObject, locate, type Location, type Resource, serviceAccounts } from './resource.ts';

/** A page of objects. */
export interface ObjectList<T> {
  metadata: { resourceVersion: string; continue?: string };
  items: T[];
}

/** An event of a watch. */
export type WatchEvent<T> =
  { type: 'ADDED' | 'MODIFIED' | 'DELETED'; object: T } | { type: 'BOOKMARK'; object: KubernetesObject };

/** Query parameters. */
export type Query = Record<string, string | number | boolean | undefined>;

/** A request. */
export interface KubernetesRequest extends Location {
  method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  query?: Query;
  body?: unknown;
  contentType?: string;
  accept?: string;
  signal?: AbortSignal | undefined;
  /** Bytes of the response that are read; a larger one fails with `tooLarge`. */
  maximumBytes?: number | undefined;
}

/** Options of a write. */
export interface WriteOptions {
  fieldManager?: string;
  signal?: AbortSignal | undefined;
}

/** The parts of a request that metrics and traces contain. */
export interface SentRequest {
  method: string;
  url: URL;
  /** Its path with placeholders in braces. */
  template: string;
}

interface Response extends Pick<Dispatcher.ResponseData, 'statusCode' | 'headers' | 'body'> {
  /** The body; empty for a watch that has begun. */
  text: string;
}

/** Options of a client. */
export interface KubernetesClientOptions {
  config: KubeConfig;
  /** User agent, as shown in audit logs. */
  userAgent: string;
  /**
   * Timeout in milliseconds of a request from the connection to the last byte, and of the beginning of a watch (default
   * 30 s). It excludes obtaining the credential, for which an exec plugin may ask the user.
   */
  timeoutMilliseconds?: number;
  /** Maximum number of connections; further requests wait (default unlimited). */
  maxConnections?: number;
  /** Sends a request, with these headers added, and returns the result of `exchange`: for metrics and traces. */
  around?: <R extends { readonly statusCode: number }>(
    request: SentRequest,
    exchange: (headers?: Record<string, string>) => Promise<R>,
  ) => Promise<R>;
}

/** Milliseconds without data after which a watch is dead; bookmarks arrive every minute. */
const defaultIdleMilliseconds = 150_000;

/** Typed requests over keep-alive connections. Every method throws KubernetesError. */
export class KubernetesClient {
  private readonly options: KubernetesClientOptions;
  private readonly timeoutMilliseconds: number;
  private readonly connection: Connection;

  constructor(options: KubernetesClientOptions) {
    this.options = options;
    this.timeoutMilliseconds = options.timeoutMilliseconds ?? 30_000;
    this.connection = new Connection(options.config, options.maxConnections);
  }

  /** Base URL of the API server. */
  get server(): string {
    return this.connection.server;
  }

  /** Reads one object. Fails with `tooLarge` beyond `maximumBytes`. */
  get<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    name: string,
    signal?: AbortSignal,
    maximumBytes?: number,
  ): Promise<T> {
    return this.request({ method: 'GET', ...locate(resource, namespace, name), signal, maximumBytes });
  }

  /** Reads one object. Returns undefined if it does not exist. Fails with `tooLarge` beyond `maximumBytes`. */
  async find<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    name: string,
    signal?: AbortSignal,
    maximumBytes?: number,
  ): Promise<T | undefined> {
    try {
      return await this.get<T>(resource, namespace, name, signal, maximumBytes);
    } catch (error) {
      if (error instanceof KubernetesError && error.failure === 'notFound') return undefined;
      throw error;
    }
  }

  /** Reads a page of a collection. The namespace '' means all. Fails with `tooLarge` beyond `maximumBytes`. */
  list<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    query: Query = {},
    signal?: AbortSignal,
    maximumBytes?: number,
  ): Promise<ObjectList<T>> {
    return this.request({ method: 'GET', ...locate(resource, namespace), query, signal, maximumBytes });
  }

  /** Creates an object. With `dryRun` it is validated but not stored. */
  create<T extends KubernetesObject>(
    resource: Resource,
    object: T,
    { fieldManager, dryRun = false, signal }: WriteOptions & { dryRun?: boolean } = {},
  ): Promise<T> {
    const location = locate(resource, object.metadata.namespace ?? '');
    const query = { fieldManager, dryRun: dryRun ? 'All' : undefined };
    return this.request({ method: 'POST', ...location, query, body: object, signal });
  }

  /**
   * Patches an object or its status (JSON merge patch). If the patch contains metadata.resourceVersion, only that version is
   * changed.
   */
  mergePatch<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    name: string,
    patch: object,
    { fieldManager, subresource, signal }: WriteOptions & { subresource?: 'status' } = {},
  ): Promise<T> {
    const contentType = 'application/merge-patch+json';
    const location = locate(resource, namespace, name, subresource);
    return this.request({ method: 'PATCH', ...location, query: { fieldManager }, body: patch, contentType, signal });
  }

  /**
   * Applies an object or its status (server-side apply). Fields that the manager applied before and omits now are
   * removed. Without `force`, a field that another manager owns with another value is a conflict.
   */
  apply<T extends KubernetesObject>(
    resource: Resource,
    object: T,
    options: WriteOptions & { fieldManager: string; force: boolean; subresource?: 'status' },
  ): Promise<T> {
    const { fieldManager, force, subresource, signal } = options;
    const location = locate(resource, object.metadata.namespace ?? '', object.metadata.name, subresource);
    const contentType = 'application/apply-patch+yaml';
    return this.request({
      method: 'PATCH',
      ...location,
      query: { fieldManager, force },
      body: object,
      contentType,
      signal,
    });
  }

  /** Deletes an object if it still has this uid. */
  async delete(resource: Resource, namespace: string, name: string, uid: string, signal?: AbortSignal): Promise<void> {
    const body = { preconditions: { uid } };
    await this.request({ method: 'DELETE', ...locate(resource, namespace, name), body, signal });
  }

  /** Creates a token of a service account. */
  async createToken(
    namespace: string,
    serviceAccount: string,
    spec: { audiences?: readonly string[]; expirationSeconds: number },
  ): Promise<string> {
    const body = { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec };
    const location = locate(serviceAccounts, namespace, serviceAccount, 'token');
    const { status } = await this.request<{ status: { token: string } }>({ method: 'POST', ...location, body });
    return status.token;
  }

  /**
   * Watches a collection, from query.resourceVersion on, until the server ends the watch. Throws if it ends otherwise, if
   * no data arrives for `idleMilliseconds`, and when the signal aborts.
   */
  async *watch<T extends KubernetesObject>(
    resource: Resource,
    namespace: string,
    query: Query,
    signal: AbortSignal,
    idleMilliseconds = defaultIdleMilliseconds,
  ): AsyncGenerator<WatchEvent<T>> {
    const parameters = { ...query, watch: true, allowWatchBookmarks: true };
    const request = { method: 'GET', ...locate(resource, namespace), query: parameters, signal } as const;
    const { body } = await this.exchange(request, idleMilliseconds);
    try {
      for await (const event of jsonLines<WatchEvent<T> | { type: 'ERROR'; object: Status }>(body)) {
        if (event.type === 'ERROR') throw new KubernetesError(event.object.code ?? 500, event.object);
        yield event;
      }
    } catch (error) {
      throw transportError(error);
    }
  }

  /** Sends any request. Returns the parsed response. */
  async request<T>(request: KubernetesRequest): Promise<T> {
    const { text } = await this.exchange(request);
    try {
      return JSON.parse(text) as T;
    } catch (error) {
      throw transportError(error);
    }
  }

  /** Closes the connections. */
  close(): Promise<void> {
    return this.connection.close();
  }

  /** Returns the response of a request that succeeded; `idleMilliseconds` marks a watch. */
  private async exchange(request: KubernetesRequest, idleMilliseconds?: number): Promise<Response> {
    let response = await this.exchangeOnce(request, idleMilliseconds);
    if (response.statusCode === 401) {
      // The token may have just been rotated.
      this.connection.forgetCredentials();
      response = await this.exchangeOnce(request, idleMilliseconds);
    }
    const { statusCode, headers, text } = response;
    if (statusCode < 300) return response;
    const retryAfter = headers['retry-after'];
    throw responseError(statusCode, text, Array.isArray(retryAfter) ? retryAfter[0] : retryAfter);
  }

  private async exchangeOnce(request: KubernetesRequest, idleMilliseconds: number | undefined): Promise<Response> {
    const { method, path, template = path, query = {}, contentType = 'application/json' } = request;
    const { headers, dispatcher } = await this.connection.authenticate();
    const url = new URL(this.server + path);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    const body = request.body === undefined ? null : JSON.stringify(request.body);
    const exchange = async (more: Record<string, string> = {}): Promise<Response> => {
      const signals = request.signal ? [request.signal] : [];
      if (idleMilliseconds === undefined) signals.push(AbortSignal.timeout(this.timeoutMilliseconds));
      try {
        const response = await send(url, {
          method,
          headers: {
            ...headers,
            accept: request.accept ?? 'application/json',
            'user-agent': this.options.userAgent,
            ...more,
            ...(body === null ? {} : { 'content-type': contentType }),
          },
          body,
          dispatcher,
          signal: AbortSignal.any(signals),
          headersTimeout: this.timeoutMilliseconds,
          bodyTimeout: idleMilliseconds ?? 0,
        });
        const isWatch = idleMilliseconds !== undefined && response.statusCode < 300;
        const { statusCode, headers: received } = response;
        const text = isWatch ? '' : await textOf(response.body, request.maximumBytes);
        return { statusCode, headers: received, body: response.body, text };
      } catch (error) {
        throw transportError(error);
      }
    };
    const { around } = this.options;
    return around ? around({ method, url, template }, exchange) : exchange();
  }
}

/** Reads a body. Throws KubernetesError `tooLarge` if it is larger than this. */
async function textOf(body: Dispatcher.ResponseData['body'], most = Infinity): Promise<string> {
  if (most === Infinity) return body.text();
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of body as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > most) {
      throw new KubernetesError(0, { message: `the response is larger than ${most} bytes` }, { failure: 'tooLarge' });
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
}
