// Client of the data plane's REST API, with a dedicated service account token of the cluster (audience kellet).
import http from 'node:http';
import https from 'node:https';
import { type Cluster, ClusterError } from './cluster.ts';
import { chooseEndpoint, type EndpointHints, readAnnotation } from './endpoint.ts';
import { connectionProblem, type Outcome, PluginError } from './errors.ts';
import { findTarget, portForwardAgent } from './port-forward.ts';

/** Default service account. */
const defaultServiceAccount = 'kellet-cli';

/** Minimum token lifetime that the API server accepts, in seconds. */
const tokenSeconds = 600;

/** A service account. */
export interface Account {
  readonly namespace: string;
  readonly name: string;
}

/** Address and identity. */
export interface DataPlaneOptions extends Pick<EndpointHints, 'server' | 'service'> {
  readonly account: Account;
  readonly timeoutMilliseconds: number;
}

/** Parses `[NAMESPACE/]NAME`. The namespace defaults to the tenant's. */
export function accountOf(text: string | undefined, namespace: string): Account {
  const [first = defaultServiceAccount, second] = (text ?? defaultServiceAccount).split('/');
  return second === undefined ? { namespace, name: first } : { namespace: first, name: second };
}

/** Parts of a request besides method and path. */
export interface DataPlaneRequest {
  readonly query?: Readonly<Record<string, string | undefined>>;
  /** Sent as JSON, or as raw bytes if it is a Buffer. */
  readonly body?: object | Buffer;
  readonly headers?: Readonly<Record<string, string>>;
}

const outcomes: Readonly<Record<string, Outcome>> = {
  NOT_FOUND: 'notFound',
  UNAUTHENTICATED: 'denied',
  PERMISSION_DENIED: 'denied',
  FAILED_PRECONDITION: 'precondition',
  ALREADY_EXISTS: 'precondition',
  ABORTED: 'precondition',
  UNAVAILABLE: 'unavailable',
  DEADLINE_EXCEEDED: 'unavailable',
  RESOURCE_EXHAUSTED: 'unavailable',
};

/** Error response of the data plane. */
class DataPlaneRefusal extends PluginError {
  /** Error code in the body. */
  readonly code: string;

  constructor(code: string, message: string, hint?: string) {
    super(outcomes[code] ?? 'failed', message, hint);
    this.code = code;
  }
}

/** Client for the tenant of the cluster's namespace. Connects and authenticates on the first request. */
export class DataPlane {
  private readonly cluster: Cluster;
  private readonly options: DataPlaneOptions;
  private way: Promise<{ base: string; agent: http.Agent | undefined }> | undefined;
  private token: { text: string; until: number } | undefined;

  constructor(cluster: Cluster, options: DataPlaneOptions) {
    this.cluster = cluster;
    this.options = options;
  }

  /**
   * Returns the response body. Throws DataPlaneRefusal, or PluginError `unavailable` if the data plane is unreachable.
   */
  async call<T>(method: string, path: string, request: DataPlaneRequest = {}): Promise<T> {
    const { base, agent } = await (this.way ??= this.findWay());
    const token = await this.currentToken();
    const url = new URL(`${base}/api/v1/${path}`);
    for (const [name, value] of Object.entries(request.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, value);
    }
    const { body } = request;
    const bytes = body === undefined || Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body));
    const headers = {
      authorization: `Bearer ${token}`,
      'x-kellet-namespace': this.cluster.namespace,
      'user-agent': 'kubectl-kellet',
      ...(bytes === undefined
        ? {}
        : {
            'content-type': bytes === body ? 'application/octet-stream' : 'application/json',
            'content-length': bytes.length,
          }),
      ...request.headers,
    };
    const result = await new Promise<{ status: number; text: string }>((resolve, reject) => {
      const options = { method, headers, agent, signal: AbortSignal.timeout(this.options.timeoutMilliseconds) };
      const outgoing = (url.protocol === 'http:' ? http : https).request(url, options, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.once('error', reject);
        response.once('end', () =>
          resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString('utf8') }),
        );
      });
      outgoing.once('error', reject);
      outgoing.end(bytes);
    }).catch((error: unknown) => {
      if (error instanceof PluginError) throw error;
      const hint = 'the state known to the cluster: kubectl kellet status';
      throw new PluginError(
        'unavailable',
        `the data plane at ${base} cannot be reached: ${connectionProblem(error)}`,
        hint,
      );
    });
    if (result.status >= 200 && result.status < 300) return JSON.parse(result.text) as T;
    throw this.refusalOf(result.status, result.text);
  }

  /** Returns all items of a paged list. */
  async list<T>(path: string, field: string, query: Readonly<Record<string, string | undefined>> = {}): Promise<T[]> {
    const items: T[] = [];
    for (let token = ''; ;) {
      const page = await this.call<Record<string, unknown> & { next_page_token?: string }>('GET', path, {
        query: { ...query, page_size: '500', ...(token ? { page_token: token } : {}) },
      });
      items.push(...(page[field] as T[]));
      token = page.next_page_token ?? '';
      if (!token) return items;
    }
  }

  private async findWay() {
    const { server, service } = this.options;
    const annotation = server || service ? undefined : await readAnnotation(this.cluster);
    const endpoint = chooseEndpoint({ server, service, annotation });
    if (endpoint.kind === 'url') return { base: endpoint.url, agent: undefined };
    const target = await findTarget(this.cluster, endpoint.namespace, endpoint.name);
    // The host is used only in the request; the connection is the port-forward.
    return { base: `http://${target.pod}`, agent: portForwardAgent(this.cluster, target) };
  }

  private async currentToken(): Promise<string> {
    if (this.token && this.token.until > Date.now()) return this.token.text;
    const { namespace, name } = this.options.account;
    const spec = { audiences: ['kellet'], expirationSeconds: tokenSeconds };
    try {
      const text = await this.cluster.createToken(namespace, name, spec);
      this.token = { text, until: Date.now() + (tokenSeconds - 60) * 1000 };
      return text;
    } catch (error) {
      if (!(error instanceof ClusterError)) throw error;
      if (error.failure === 'notFound') {
        throw new PluginError(
          'notFound',
          `service account ${name} not found in namespace ${namespace}`,
          'create it as in examples/kubectl-access.yaml, or use another: --service-account [NAMESPACE/]NAME',
        );
      }
      if (error.failure === 'forbidden') {
        throw new PluginError(
          'denied',
          `not allowed to act as service account ${namespace}/${name}: ${error.message}`,
          `you need the verb create on serviceaccounts/token, as in the Role use-kellet-cli of examples/kubectl-access.yaml`,
        );
      }
      throw error;
    }
  }

  private refusalOf(status: number, text: string): PluginError {
    let code = '';
    let message = text.trim().slice(0, 200);
    try {
      const body = JSON.parse(text) as { code?: string | number; message?: string };
      code = status === 429 ? 'RESOURCE_EXHAUSTED' : String(body.code ?? '');
      message = body.message ?? message;
    } catch {
      // Not an error of the data plane but of a proxy.
    }
    const { namespace, name } = this.options.account;
    const user = `system:serviceaccount:${namespace}:${name}`;
    const hints: Readonly<Record<string, string>> = {
      PERMISSION_DENIED: `${user} needs a RoleBinding to kellet-view or kellet-operate in ${this.cluster.namespace}`,
      UNAUTHENTICATED: `the data plane does not accept this cluster's tokens; it may belong to another cluster (${user})`,
      RESOURCE_EXHAUSTED: 'the tenant’s rate limit is exceeded: wait a minute',
    };
    return new DataPlaneRefusal(code, message || `the data plane returned ${status}`, hints[code]);
  }
}
