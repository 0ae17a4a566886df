// Client of the Kubernetes API with the user's kubeconfig: simple requests and watches.
import http from 'node:http';
import https, { type RequestOptions } from 'node:https';
import { KubeConfig } from '@kubernetes/client-node';
import { group, plurals, version, type Kind } from '@kellet/crds';
import { connectionProblem, PluginError } from './errors.ts';

/** Any object of the Kubernetes API. */
export interface KubernetesObject {
  readonly apiVersion?: string;
  readonly kind?: string;
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string;
    readonly uid?: string;
    readonly resourceVersion?: string;
    readonly generation?: number;
    readonly creationTimestamp?: string;
    readonly deletionTimestamp?: string;
    readonly annotations?: Readonly<Record<string, string>>;
    readonly managedFields?: unknown;
  };
}

/** A list as returned by the API server. */
export interface KubernetesList<T> {
  readonly metadata: { readonly resourceVersion: string };
  readonly items: readonly T[];
}

/** Watch event. */
export interface WatchEvent<T> {
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  readonly object: T;
}

/** Error response of the API server. */
export class KubernetesRefusal extends PluginError {
  /** HTTP status. */
  readonly status: number;

  constructor(status: number, message: string, hint?: string) {
    const outcome = { 404: 'notFound', 401: 'denied', 403: 'denied', 409: 'precondition' } as const;
    super(
      outcome[status as keyof typeof outcome] ?? (status >= 500 || status === 429 ? 'unavailable' : 'failed'),
      message,
      hint,
    );
    this.status = status;
  }
}

/** Options that select the kubeconfig. */
export interface ClusterOptions {
  readonly kubeconfig?: string | undefined;
  readonly context?: string | undefined;
  readonly namespace?: string | undefined;
  readonly timeoutMilliseconds: number;
}

/** Returns the path of a kind's collection or of an object, in a namespace or, if it is undefined, in all. */
export function resourcePath(kind: Kind, namespace: string | undefined, name = ''): string {
  const scope = namespace === undefined ? '' : `/namespaces/${encodeURIComponent(namespace)}`;
  return `/apis/${group}/${version}${scope}/${plurals[kind]}${name ? `/${encodeURIComponent(name)}` : ''}`;
}

/** A cluster and namespace, accessed as the user of the kubeconfig. */
export class Cluster {
  readonly config: KubeConfig;
  readonly namespace: string;
  readonly server: string;
  private readonly timeoutMilliseconds: number;

  private constructor(config: KubeConfig, server: string, options: ClusterOptions) {
    this.config = config;
    this.server = server.replace(/\/+$/, '');
    const context = config.getContextObject(config.getCurrentContext());
    this.namespace = options.namespace ?? context?.namespace ?? 'default';
    this.timeoutMilliseconds = options.timeoutMilliseconds;
  }

  /** Loads the kubeconfig. Throws PluginError if it cannot be read or lacks the context. */
  static open(options: ClusterOptions): Cluster {
    const config = new KubeConfig();
    try {
      if (options.kubeconfig) config.loadFromFile(options.kubeconfig);
      else config.loadFromDefault();
    } catch (error) {
      throw new PluginError(
        'failed',
        `the kubeconfig cannot be read: ${connectionProblem(error)}`,
        'name one: --kubeconfig FILE',
      );
    }
    if (options.context !== undefined) {
      const names = config.getContexts().map(({ name }) => name);
      if (!names.includes(options.context)) {
        throw new PluginError(
          'usage',
          `the kubeconfig has no context ${options.context}`,
          `it has: ${names.join(', ') || 'none'}`,
        );
      }
      config.setCurrentContext(options.context);
    }
    const cluster = config.getCurrentCluster();
    if (!cluster) throw new PluginError('failed', 'the kubeconfig has no current context', 'use --context NAME');
    return new Cluster(config, cluster.server, options);
  }

  /** Reads an object or a list. Throws KubernetesRefusal, or PluginError `unavailable`. */
  get<T>(path: string): Promise<T> {
    return this.request<T>('GET', path);
  }

  /** Creates an object. Throws like get. */
  post<T>(path: string, body: object): Promise<T> {
    return this.request<T>('POST', path, body);
  }

  /**
   * Watches a collection from a version until the server ends the watch or `signal` aborts. Throws KubernetesRefusal
   * 410 if the version is too old, and PluginError `unavailable` if the connection is lost.
   */
  async *watch<T>(path: string, from: string, signal: AbortSignal): AsyncGenerator<WatchEvent<T>> {
    const query = `${path.includes('?') ? '&' : '?'}watch=true&allowWatchBookmarks=true&resourceVersion=${from}`;
    const response = await this.open('GET', `${path}${query}`, undefined, signal);
    if (response.statusCode !== 200) throw refusal(response.statusCode ?? 0, await textOf(response));
    let rest = '';
    try {
      for await (const chunk of response.setEncoding('utf8') as AsyncIterable<string>) {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop()!;
        for (const line of lines) {
          const event = JSON.parse(line) as WatchEvent<T>;
          if (event.type === 'ERROR') {
            const { code = 500, message = '' } = event.object as { code?: number; message?: string };
            throw new KubernetesRefusal(code, message);
          }
          yield event;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      throw error instanceof PluginError ? error : this.away(error);
    } finally {
      response.destroy();
    }
  }

  private async request<T>(method: string, path: string, body?: object): Promise<T> {
    const response = await this.open(method, path, body, AbortSignal.timeout(this.timeoutMilliseconds));
    const text = await textOf(response).catch((error: unknown) => {
      throw this.away(error);
    });
    const status = response.statusCode ?? 0;
    if (status < 200 || status > 299) throw refusal(status, text);
    return JSON.parse(text) as T;
  }

  private async open(method: string, path: string, body: object | undefined, signal: AbortSignal) {
    const options: RequestOptions = { method, signal };
    try {
      // Runs credential plugins and refreshes tokens as necessary.
      await this.config.applyToHTTPSOptions(options);
    } catch (error) {
      throw new PluginError('denied', `cannot get the kubeconfig's credential: ${connectionProblem(error)}`);
    }
    options.headers = {
      ...(options.headers as Record<string, string> | undefined),
      accept: 'application/json',
      'user-agent': 'kubectl-kellet',
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
    };
    const url = new URL(this.server + path);
    if (url.protocol === 'http:') delete options.agent;
    return new Promise<http.IncomingMessage>((resolve, reject) => {
      const request = (url.protocol === 'http:' ? http : https).request(url, options, resolve);
      request.once('error', (error) => reject(this.away(error)));
      request.end(body && JSON.stringify(body));
    });
  }

  private away(error: unknown): PluginError {
    return new PluginError(
      'unavailable',
      `the cluster at ${this.server} cannot be reached: ${connectionProblem(error)}`,
      'check it: kubectl cluster-info',
    );
  }
}

async function textOf(response: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of response as AsyncIterable<Buffer>) chunks.push(chunk);
  return Buffer.concat(chunks).toString('utf8');
}

function refusal(status: number, text: string): KubernetesRefusal {
  let message = text.trim().slice(0, 200);
  try {
    message = (JSON.parse(text) as { message?: string }).message ?? message;
  } catch {
    // Not an error of the API server but of a proxy.
  }
  if (status === 401)
    return new KubernetesRefusal(401, 'the cluster does not accept the credential of the kubeconfig', 'sign in again');
  if (status === 404 && /could not find the requested resource|page not found/.test(message)) {
    return new KubernetesRefusal(
      404,
      'the cluster does not know the resources of kellet.dev',
      'install the chart charts/kellet',
    );
  }
  return new KubernetesRefusal(status, message || `the cluster answered ${status}`);
}
