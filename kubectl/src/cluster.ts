// The Kubernetes API as the user of the kubeconfig, with errors for users.
import type { Kind } from '@kellet/crds';
import {
  customResources,
  type Failure,
  KubeConfig,
  KubernetesClient,
  KubernetesError,
  type KubernetesObject,
  type ObjectList,
  type Query,
  type Resource,
  type WatchEvent,
} from '@kellet/kubernetes';
import { connectionProblem, type Outcome, PluginError } from './errors.ts';

const outcomes: Readonly<Partial<Record<Failure, Outcome>>> = {
  noCredential: 'denied',
  unauthenticated: 'denied',
  forbidden: 'denied',
  notFound: 'notFound',
  alreadyExists: 'precondition',
  conflict: 'precondition',
  unreachable: 'unavailable',
  unknownOutcome: 'unavailable',
  throttled: 'unavailable',
  serverError: 'unavailable',
};

/** A failed request to the API server. */
export class ClusterError extends PluginError {
  readonly failure: Failure;

  constructor(failure: Failure, message: string, hint?: string) {
    super(outcomes[failure] ?? 'failed', message, hint);
    this.failure = failure;
  }
}

/** Options that select the kubeconfig. */
export interface ClusterOptions {
  readonly kubeconfig?: string | undefined;
  readonly context?: string | undefined;
  readonly namespace?: string | undefined;
  readonly timeoutMilliseconds: number;
}

/** A cluster and namespace, accessed as the user of the kubeconfig. */
export class Cluster {
  readonly config: KubeConfig;
  readonly namespace: string;
  private readonly client: KubernetesClient;

  private constructor(config: KubeConfig, options: ClusterOptions) {
    this.config = config;
    const context = config.getContextObject(config.getCurrentContext());
    this.namespace = options.namespace ?? context?.namespace ?? 'default';
    this.client = new KubernetesClient({
      config,
      userAgent: 'kubectl-kellet',
      timeoutMilliseconds: options.timeoutMilliseconds,
    });
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
    if (!config.getCurrentCluster())
      throw new PluginError('failed', 'the kubeconfig has no current context', 'use --context NAME');
    return new Cluster(config, options);
  }

  /** Reads an object. Throws ClusterError, like all methods. */
  get<T extends KubernetesObject>(resource: Resource, name: string, namespace = this.namespace): Promise<T> {
    return this.attempt(this.client.get<T>(resource, namespace, name));
  }

  /** Reads a resource of the namespace; if it does not exist, the error names it as `what` and contains the hint. */
  async read<T extends KubernetesObject>(
    kind: Kind,
    name: string,
    hint?: string,
    what = `${kind} ${name}`,
  ): Promise<T> {
    try {
      return await this.get<T>(customResources[kind], name);
    } catch (error) {
      // An error that has its own hint is not about the resource.
      if (!(error instanceof ClusterError) || error.failure !== 'notFound' || error.hint) throw error;
      throw new PluginError('notFound', `${what} not found in namespace ${this.namespace}`, hint);
    }
  }

  /** Reads a collection of the namespace. */
  list<T extends KubernetesObject>(
    resource: Resource,
    query: Query = {},
    namespace = this.namespace,
  ): Promise<ObjectList<T>> {
    return this.attempt(this.client.list<T>(resource, namespace, query));
  }

  /**
   * Watches a collection of the namespace from query.resourceVersion until the server ends the watch or `signal` aborts.
   * Throws ClusterError `expired` if the version is too old.
   */
  async *watch<T extends KubernetesObject>(
    resource: Resource,
    query: Query,
    signal: AbortSignal,
  ): AsyncGenerator<WatchEvent<T>> {
    try {
      yield* this.client.watch<T>(resource, this.namespace, query, signal);
    } catch (error) {
      if (!signal.aborted) throw this.explain(error);
    }
  }

  /** Creates a token of a service account. */
  createToken(...parameters: Parameters<KubernetesClient['createToken']>): Promise<string> {
    return this.attempt(this.client.createToken(...parameters));
  }

  /** Returns the version of the API server. */
  async version(): Promise<string> {
    const request = this.client.request<{ gitVersion: string }>({ method: 'GET', path: '/version' });
    return (await this.attempt(request)).gitVersion;
  }

  private async attempt<T>(request: Promise<T>): Promise<T> {
    try {
      return await request;
    } catch (error) {
      throw this.explain(error);
    }
  }

  private explain(error: unknown): unknown {
    if (!(error instanceof KubernetesError)) return error;
    const { failure, message, cause } = error;
    if (failure === 'noCredential') {
      return new ClusterError(failure, `cannot get the kubeconfig's credential: ${connectionProblem(cause)}`);
    }
    if (failure === 'unreachable' || failure === 'unknownOutcome') {
      const text = `the cluster at ${this.client.server} cannot be reached: ${connectionProblem(cause)}`;
      return new ClusterError(failure, text, 'check with: kubectl cluster-info');
    }
    if (failure === 'unauthenticated') {
      return new ClusterError(failure, 'the cluster does not accept the credential of the kubeconfig', 'sign in again');
    }
    if (failure === 'notFound' && error.objectName === undefined) {
      const text = 'the cluster does not have the resources of kellet.dev';
      return new ClusterError(failure, text, 'install the chart charts/kellet');
    }
    return new ClusterError(failure, message);
  }
}
