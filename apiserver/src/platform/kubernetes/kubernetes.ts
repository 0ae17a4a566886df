// A small Kubernetes API client for the custom resources that REST and gRPC callers create, change and delete.
// Configuration and credentials come from @kubernetes/client-node; the requests are sent directly over kept-alive
// connections.
import http from 'node:http';
import https, { type RequestOptions } from 'node:https';
import { isDeepStrictEqual } from 'node:util';
import { KubeConfig } from '@kubernetes/client-node';
import type { JSONWebKeySet } from 'jose';
import { apiFieldManager, apiVersion, group, plurals, version, type Kind, type ObjectMeta } from '@kellet/crds';
import { KelletError, unavailable } from '../errors.ts';
import type { Logger } from '../observability/logger.ts';
import { traceRequestTo } from '../outbound/outgoing-call.ts';
import { traceHeaders } from '../observability/tracing.ts';

/** An entry of metadata.managedFields: which fields a manager owns, and through which operation. */
export interface ManagedFields {
  readonly manager?: string;
  readonly operation?: 'Apply' | 'Update';
  readonly subresource?: string;
  /** A tree of `f:<field>` keys. */
  readonly fieldsV1?: Record<string, unknown>;
}

/** A custom resource as returned by the API server. */
export interface KubernetesObject<Spec = Record<string, unknown>> {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: ObjectMeta & { readonly managedFields?: readonly ManagedFields[] };
  readonly spec: Spec;
}

/** An error response of the API server: the parts of its Status that decisions need. */
export class KubernetesError extends Error {
  /** HTTP status. */
  readonly status: number;
  /** Machine-readable reason: AlreadyExists, NotFound, Conflict, Invalid, … */
  readonly reason: string;
  /** One entry per field that is invalid or owned by another manager. */
  readonly causes: readonly { reason?: string; message?: string; field?: string }[];

  constructor(status: number, reason: string, message: string, causes: KubernetesError['causes']) {
    super(message);
    this.name = 'KubernetesError';
    this.status = status;
    this.reason = reason;
    this.causes = causes;
  }
}

interface Call {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  /** The path without names, for spans; defaults to the path itself. */
  readonly template?: string;
  readonly body?: unknown;
  readonly contentType?: string;
  readonly accept?: string;
  readonly signal?: AbortSignal | undefined;
}

/** Timeout of a request, from connecting to the last byte. */
const requestMilliseconds = 5000;
const kept = { keepAlive: true, maxSockets: 16 };

/** Loads the configuration that kubectl would use: $KUBECONFIG, else the pod's service account, else ~/.kube/config. */
export function loadKubeConfig(kubeconfig: string | undefined): KubeConfig {
  const config = new KubeConfig();
  if (kubeconfig) config.loadFromFile(kubeconfig);
  else if (process.env['KUBERNETES_SERVICE_HOST']) config.loadFromCluster();
  else config.loadFromDefault();
  return config;
}

/**
 * Reads and writes custom resources as field manager kellet-api. Every method throws UNAVAILABLE if the API server
 * cannot be reached, does not respond in time or does not serve us, and KubernetesError if it rejects the request
 * itself.
 */
export class KubernetesApi {
  private readonly config: KubeConfig;
  private readonly logger: Logger;
  private readonly server: URL;
  private connection: { tls: object; agent: http.Agent } | undefined;

  constructor(config: KubeConfig, logger: Logger) {
    const cluster = config.getCurrentCluster();
    if (!cluster) throw new Error('the Kubernetes configuration has no current cluster');
    this.config = config;
    this.logger = logger;
    this.server = new URL(cluster.server.endsWith('/') ? cluster.server : `${cluster.server}/`);
  }

  /**
   * Creates a resource; throws KubernetesError AlreadyExists if the name is taken. With `dryRun` it is validated but
   * not stored.
   */
  create<Spec>(
    kind: Kind,
    object: KubernetesObject<Spec>,
    signal?: AbortSignal,
    { dryRun = false } = {},
  ): Promise<KubernetesObject<Spec>> {
    const { path, template } = addressOf(kind, object.metadata.namespace ?? '');
    const query = `?fieldManager=${apiFieldManager}${dryRun ? '&dryRun=All' : ''}`;
    return this.call({ method: 'POST', path: path + query, template, body: object, signal });
  }

  /** Returns a resource, or undefined if it does not exist. */
  async get<Spec>(
    kind: Kind,
    namespace: string,
    name: string,
    signal?: AbortSignal,
  ): Promise<KubernetesObject<Spec> | undefined> {
    try {
      return await this.call({ method: 'GET', ...addressOf(kind, namespace, name), signal });
    } catch (error) {
      if (error instanceof KubernetesError && error.status === 404) return undefined;
      throw error;
    }
  }

  /**
   * Applies a resource server-side without force; throws KubernetesError Conflict, with one cause per field, if another
   * manager owns a field and wants a different value. Fields applied before and omitted now are removed.
   */
  apply<Spec>(kind: Kind, object: KubernetesObject<Spec>, signal?: AbortSignal): Promise<KubernetesObject<Spec>> {
    const { namespace = '', name } = object.metadata;
    const { path, template } = addressOf(kind, namespace, name);
    return this.call({
      method: 'PATCH',
      path: `${path}?fieldManager=${apiFieldManager}&force=false`,
      template,
      body: object,
      contentType: 'application/apply-patch+yaml',
      signal,
    });
  }

  /**
   * Sends a JSON merge patch; if it contains metadata.resourceVersion, throws KubernetesError Conflict unless that
   * version is current.
   */
  mergePatch<Spec>(
    kind: Kind,
    namespace: string,
    name: string,
    patch: object,
    signal?: AbortSignal,
  ): Promise<KubernetesObject<Spec>> {
    const { path, template } = addressOf(kind, namespace, name);
    return this.call({
      method: 'PATCH',
      path: `${path}?fieldManager=${apiFieldManager}`,
      template,
      body: patch,
      contentType: 'application/merge-patch+json',
      signal,
    });
  }

  /** Deletes the resource if it still has this uid; does nothing if it no longer exists. */
  async delete(kind: Kind, namespace: string, name: string, uid: string, signal?: AbortSignal): Promise<void> {
    try {
      await this.call({
        method: 'DELETE',
        ...addressOf(kind, namespace, name),
        body: { preconditions: { uid } },
        signal,
      });
    } catch (error) {
      if (error instanceof KubernetesError && (error.status === 404 || error.status === 409)) return;
      throw error;
    }
  }

  /**
   * Submits a review object (TokenReview, …), which the API server evaluates without storing it, and returns its
   * status.
   */
  async review<Status>(reviewVersion: string, kind: string, spec: object): Promise<Status> {
    const { status } = await this.call<{ status: Status }>({
      method: 'POST',
      path: `apis/${reviewVersion}/${kind.toLowerCase()}s`,
      body: { apiVersion: reviewVersion, kind, spec },
    });
    return status;
  }

  /** Returns the public keys with which the cluster signs service account tokens, as a JSON Web Key Set. */
  async signingKeys(): Promise<JSONWebKeySet> {
    return this.call({ method: 'GET', path: 'openid/v1/jwks', accept: 'application/jwk-set+json' });
  }

  private async call<T>(call: Call): Promise<T> {
    let answer: { status: number; text: string };
    try {
      const { method, path, template = path } = call;
      const url = new URL(path, this.server);
      answer = await traceRequestTo({ method, url, template: `/${template}` }, async (answered) => {
        const received = await this.send(call, url);
        answered(received.status);
        return received;
      });
    } catch (error) {
      throw unavailable('the Kubernetes API is unavailable', error);
    }
    if (answer.status < 300) return JSON.parse(answer.text) as T;
    const refused = toKubernetesError(answer.status, answer.text);
    if (![401, 403, 429].includes(answer.status) && answer.status < 500) throw refused;
    // Not the caller's fault: our credential or role is wrong, or the API server is overloaded or broken.
    this.logger.warn(
      { err: refused, method: call.method, path: call.path },
      'the Kubernetes API did not serve a request',
    );
    throw new KelletError('UNAVAILABLE', 'the Kubernetes API is unavailable', { cause: refused, retryAfterSeconds: 1 });
  }

  /**
   * Sends a request with the trace context. An API server that records traces (`--tracing-config-file`) continues the
   * trace; both belong to the same cluster's administrators.
   */
  private async send(call: Call, url: URL): Promise<{ status: number; text: string }> {
    const body = call.body === undefined ? undefined : JSON.stringify(call.body);
    // Tokens and certificates rotate and exec plugins renew: client-node rereads the credential when it is due.
    const options: RequestOptions = {};
    await this.config.applyToHTTPSOptions(options);
    const agent = this.agentFor(options);
    const signals = [AbortSignal.timeout(requestMilliseconds), ...(call.signal ? [call.signal] : [])];
    return new Promise((resolve, reject) => {
      const request = (url.protocol === 'http:' ? http : https).request(url, {
        ...(options.auth ? { auth: options.auth } : {}),
        agent,
        method: call.method,
        headers: {
          ...(options.headers as Record<string, string> | undefined),
          accept: call.accept ?? 'application/json',
          'user-agent': 'kellet-apiserver',
          ...traceHeaders(),
          ...(body === undefined
            ? {}
            : { 'content-type': call.contentType ?? 'application/json', 'content-length': Buffer.byteLength(body) }),
        },
        signal: AbortSignal.any(signals),
      });
      request.once('error', reject);
      request.once('response', (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.once('error', reject);
        response.once('end', () =>
          resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString('utf8') }),
        );
      });
      request.end(body);
    });
  }

  /** Returns an agent with kept-alive connections, reused while the credential stays the same. */
  private agentFor(options: RequestOptions): http.Agent {
    if (this.config.getCurrentCluster()?.proxyUrl && options.agent) return options.agent as http.Agent;
    const { ca, cert, key, pfx, passphrase, rejectUnauthorized, servername } = options;
    const tls = { ca, cert, key, pfx, passphrase, rejectUnauthorized, servername };
    if (!this.connection || !isDeepStrictEqual(this.connection.tls, tls)) {
      const agent = this.server.protocol === 'http:' ? new http.Agent(kept) : new https.Agent({ ...tls, ...kept });
      this.connection = { tls, agent };
    }
    return this.connection.agent;
  }

  /** Closes the kept-alive connections. */
  close(): void {
    this.connection?.agent.destroy();
  }
}

function addressOf(kind: Kind, namespace: string, name = ''): { path: string; template: string } {
  const pathOf = (scope: string, item: string): string =>
    `apis/${group}/${version}${namespace === '' ? '' : `/namespaces/${scope}`}/${plurals[kind]}${name === '' ? '' : `/${item}`}`;
  return {
    path: pathOf(encodeURIComponent(namespace), encodeURIComponent(name)),
    template: pathOf('{namespace}', '{name}'),
  };
}

function toKubernetesError(status: number, text: string): KubernetesError {
  try {
    const answer = JSON.parse(text) as { reason?: string; message?: string; details?: { causes?: [] } };
    return new KubernetesError(status, answer.reason ?? '', answer.message ?? '', answer.details?.causes ?? []);
  } catch {
    return new KubernetesError(status, '', text.slice(0, 200), []);
  }
}

/** Returns a Kellet resource, ready to be created or applied. */
export function resourceOf<Spec>(kind: Kind, metadata: ObjectMeta, spec: Spec): KubernetesObject<Spec> {
  return { apiVersion, kind, metadata, spec };
}
