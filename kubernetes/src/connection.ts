// Credentials and keep-alive connections. @kubernetes/client-node reads kubeconfigs and credentials; connections are made
// here, because that library keeps using those of a client certificate that has been replaced.
import { readFile } from 'node:fs/promises';
import type { RequestOptions } from 'node:https';
import { isDeepStrictEqual } from 'node:util';
import { KubeConfig } from '@kubernetes/client-node';
import { Agent, type Dispatcher, ProxyAgent } from 'undici';
import { KubernetesError } from './errors.ts';

/** Loads a kubeconfig. Without a path, uses the pod's own configuration, else kubectl's default. */
export function loadKubeConfig(kubeconfig: string | undefined): KubeConfig {
  const config = new KubeConfig();
  if (kubeconfig) config.loadFromFile(kubeconfig);
  else if (process.env['KUBERNETES_SERVICE_HOST']) config.loadFromCluster();
  else config.loadFromDefault();
  return config;
}

/** Credentials of a request, and the connections to send it on. */
export interface Credentials {
  readonly headers: Readonly<Record<string, string>>;
  readonly dispatcher: Dispatcher;
}

/** Lifetime of cached credentials, because token files and exec plugins rotate them. */
const lifetimeMilliseconds = 10_000;

/** Connections to the current cluster of a kubeconfig. */
export class Connection {
  /** Base URL, without a slash at the end. */
  readonly server: string;
  private readonly config: KubeConfig;
  private readonly maxConnections: number | null;
  private credentials: (Credentials & { readonly readAt: number }) | undefined;
  private pool: { readonly tls: object; readonly dispatcher: Dispatcher } | undefined;

  constructor(config: KubeConfig, maxConnections: number | undefined) {
    const cluster = config.getCurrentCluster();
    if (!cluster) throw new Error('the kubeconfig has no current cluster');
    this.server = cluster.server.replace(/\/+$/, '');
    this.config = config;
    this.maxConnections = maxConnections ?? null;
  }

  /** Returns the current credentials. Throws KubernetesError `noCredential`. */
  async authenticate(): Promise<Credentials> {
    const known = this.credentials;
    if (known && Date.now() - known.readAt < lifetimeMilliseconds) return known;
    try {
      this.credentials = { ...(await this.read()), readAt: Date.now() };
      return this.credentials;
    } catch (cause) {
      const message = cause instanceof Error ? cause.message : String(cause);
      throw new KubernetesError(0, { message }, { failure: 'noCredential', cause });
    }
  }

  /** Makes the next request reread its credentials. */
  forgetCredentials(): void {
    this.credentials = undefined;
  }

  /** Closes all connections; running requests fail. */
  async close(): Promise<void> {
    await this.pool?.dispatcher.destroy();
  }

  private async read(): Promise<Credentials> {
    const options: RequestOptions = {};
    await this.config.applyToHTTPSOptions(options);
    const { ca, cert, key, pfx, passphrase, rejectUnauthorized, servername } = options;
    const all = { ca, cert, key, pfx, passphrase, rejectUnauthorized, servername };
    const tls = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined && value !== null));
    // Running requests keep the connection with the old certificate until they end.
    if (!this.pool || !isDeepStrictEqual(this.pool.tls, tls)) this.pool = { tls, dispatcher: this.connect(tls) };
    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(options.headers ?? {})) headers[name.toLowerCase()] = String(value);
    // The library caches token files for up to a minute, which is too long after a 401.
    const provider = this.config.getCurrentUser()?.authProvider as { config?: { tokenFile?: string } } | undefined;
    const tokenFile = provider?.config?.tokenFile;
    if (tokenFile) headers['authorization'] = `Bearer ${(await readFile(tokenFile, 'utf8')).trim()}`;
    if (options.auth) headers['authorization'] = `Basic ${Buffer.from(options.auth).toString('base64')}`;
    return { headers, dispatcher: this.pool.dispatcher };
  }

  private connect(tls: object): Dispatcher {
    // HTTP/1.1, so that a request that times out takes only its own connection with it.
    const common = { allowH2: false, connections: this.maxConnections, keepAliveTimeout: 30_000 };
    const endpoint = { ...tls, allowH2: false, timeout: 10_000, keepAlive: true, keepAliveInitialDelay: 15_000 };
    const proxy = this.config.getCurrentCluster()?.proxyUrl;
    return proxy
      ? new ProxyAgent({ ...common, uri: proxy, requestTls: endpoint })
      : new Agent({ ...common, connect: endpoint });
  }
}
