// Custom resources for the REST and gRPC callers who create, change and delete them, and reviews of Kubernetes identities.
import { apiFieldManager, apiVersion, type Kind, type ObjectMeta } from '@kellet/crds';
import {
  customResources,
  defaultPage,
  type KubeConfig,
  KubernetesClient,
  KubernetesError,
  listPages,
  resourceFor,
} from '@kellet/kubernetes';
import type { JSONWebKeySet } from 'jose';
import { KelletError } from '../errors.ts';
import type { Logger } from '../observability/logger.ts';
import { markChanged, traceHeaders } from '../observability/tracing.ts';
import { traceRequestTo } from '../outbound/outgoing-call.ts';

/** A custom resource as returned by the API server. */
export interface KubernetesObject<Spec = Record<string, unknown>> {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: ObjectMeta;
  readonly spec: Spec;
}

/** Timeout of a request. */
const timeoutMilliseconds = 5000;

/** Failures caused by the request or the resource. Others are caused by our credential, our role or the API server. */
const refusals: ReadonlySet<string> = new Set([
  ...['alreadyExists', 'conflict', 'expired', 'invalid', 'notFound', 'other'],
]);

/**
 * Reads and writes custom resources as field manager kellet-api. Every method throws UNAVAILABLE if the API server
 * cannot be reached, does not respond in time or does not serve us, and KubernetesError if it rejects the request
 * itself.
 */
export class KubernetesApi {
  private readonly client: KubernetesClient;
  private readonly logger: Logger;

  constructor(config: KubeConfig, logger: Logger) {
    this.logger = logger;
    this.client = new KubernetesClient({
      config,
      userAgent: 'kellet-apiserver',
      timeoutMilliseconds,
      maxConnections: 16,
      // An API server that records traces (`--tracing-config-file`) continues the trace; both belong to the same
      // cluster's administrators.
      around: (request, exchange) =>
        traceRequestTo(request, async (setStatus) => {
          const response = await exchange({ ...traceHeaders() });
          setStatus(response.statusCode);
          return response;
        }),
    });
  }

  /**
   * Creates a resource; throws KubernetesError alreadyExists if the name is taken. With `dryRun` it is validated but
   * not stored.
   */
  create<Spec>(
    kind: Kind,
    object: KubernetesObject<Spec>,
    signal?: AbortSignal,
    { dryRun = false } = {},
  ): Promise<KubernetesObject<Spec>> {
    const options = { fieldManager: apiFieldManager, dryRun, signal };
    const creation = this.client.create(customResources[kind], object, options);
    return dryRun ? this.served(creation) : this.changed(creation);
  }

  /** Returns a resource, or undefined if it does not exist. */
  get<Spec>(
    kind: Kind,
    namespace: string,
    name: string,
    signal?: AbortSignal,
  ): Promise<KubernetesObject<Spec> | undefined> {
    return this.served(this.client.find<KubernetesObject<Spec>>(customResources[kind], namespace, name, signal));
  }

  /** Yields the metadata of all resources of a kind in a namespace, a page at a time. */
  async *list(kind: Kind, namespace: string): AsyncGenerator<readonly KubernetesObject['metadata'][]> {
    const options = { namespace, objects: defaultPage.objects };
    const pages = listPages<KubernetesObject>(this.client, customResources[kind], options);
    for (;;) {
      const page = await this.served(pages.next());
      if (page.done) return;
      yield page.value.items.map(({ metadata }) => metadata);
    }
  }

  /**
   * Applies a resource server-side without force; throws KubernetesError conflict, with one cause per field, if another
   * manager owns a field and wants a different value. Fields applied before and omitted now are removed.
   */
  apply<Spec>(kind: Kind, object: KubernetesObject<Spec>, signal?: AbortSignal): Promise<KubernetesObject<Spec>> {
    const options = { fieldManager: apiFieldManager, force: false, signal };
    return this.changed(this.client.apply(customResources[kind], object, options));
  }

  /**
   * Sends a JSON merge patch; if it contains metadata.resourceVersion, throws KubernetesError conflict unless that
   * version is current.
   */
  mergePatch<Spec>(
    kind: Kind,
    namespace: string,
    name: string,
    patch: object,
    signal?: AbortSignal,
  ): Promise<KubernetesObject<Spec>> {
    const options = { fieldManager: apiFieldManager, signal };
    return this.changed(this.client.mergePatch(customResources[kind], namespace, name, patch, options));
  }

  /** Deletes the resource if it still has this uid; does nothing if it no longer exists. */
  async delete(kind: Kind, namespace: string, name: string, uid: string, signal?: AbortSignal): Promise<void> {
    try {
      await this.changed(this.client.delete(customResources[kind], namespace, name, uid, signal));
    } catch (error) {
      if (error instanceof KubernetesError && ['notFound', 'conflict'].includes(error.failure)) return;
      throw error;
    }
  }

  /**
   * Submits a review object (TokenReview, …), which the API server evaluates without storing it, and returns its
   * status.
   */
  async review<Status>(reviewVersion: string, kind: string, spec: object): Promise<Status> {
    const review = { apiVersion: reviewVersion, kind, metadata: { name: '' }, spec };
    const resource = resourceFor(reviewVersion, kind, false);
    const { status } = await this.served(this.client.create<typeof review & { status?: Status }>(resource, review));
    return status!;
  }

  /** Returns the public keys with which the cluster signs service account tokens, as a JSON Web Key Set. */
  signingKeys(): Promise<JSONWebKeySet> {
    const accept = 'application/jwk-set+json';
    return this.served(this.client.request<JSONWebKeySet>({ method: 'GET', path: '/openid/v1/jwks', accept }));
  }

  /** Closes the kept-alive connections. */
  close(): Promise<void> {
    return this.client.close();
  }

  private async changed<T>(request: Promise<T>): Promise<T> {
    const result = await this.served(request);
    markChanged();
    return result;
  }

  private async served<T>(request: Promise<T>): Promise<T> {
    try {
      return await request;
    } catch (error) {
      if (!(error instanceof KubernetesError) || refusals.has(error.failure)) throw error;
      if (error.status > 0) this.logger.warn({ err: error }, 'the Kubernetes API did not serve a request');
      const retryAfterSeconds = Math.max(1, Math.ceil(error.retryAfterSeconds ?? 1));
      throw new KelletError('UNAVAILABLE', 'the Kubernetes API is unavailable', { cause: error, retryAfterSeconds });
    }
  }
}

/** Returns a Kellet resource, ready to be created or applied. */
export function resourceOf<Spec>(kind: Kind, metadata: ObjectMeta, spec: Spec): KubernetesObject<Spec> {
  return { apiVersion, kind, metadata, spec };
}
