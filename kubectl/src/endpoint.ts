// Where the data plane is: what was said on the command line, else what the tenant's namespace says, else the chart's Service.
import { endpointAnnotation } from '@kellet/crds';
import { KubernetesRefusal, type Cluster, type KubernetesObject } from './cluster.ts';
import { PluginError, usageError } from './errors.ts';

/** A base URL, or a Service to forward to. */
export type Endpoint =
  | { readonly kind: 'url'; readonly url: string }
  | { readonly kind: 'service'; readonly namespace: string; readonly name: string };

/** Where the chart puts it when its defaults are kept. */
export const defaultService = { kind: 'service', namespace: 'kellet-system', name: 'kellet-apiserver' } as const;

/** What is known of it. */
export interface EndpointHints {
  /** --server or $KELLET_SERVER. */
  readonly server?: string | undefined;
  /** --service. */
  readonly service?: string | undefined;
  /** The annotation kellet.dev/endpoint of the tenant's namespace. */
  readonly annotation?: string | undefined;
}

const loopback = new Set(['127.0.0.1', '[::1]', 'localhost']);

/** Decides. Throws PluginError for what is no URL and no Service, and for an annotation that would send a token in the clear. */
export function chooseEndpoint({ server, service, annotation }: EndpointHints): Endpoint {
  if (server) {
    const url = urlOf(server);
    if (!url) throw usageError(`--server takes a URL as https://kellet.example.com, not ${server}`);
    return { kind: 'url', url: baseOf(url) };
  }
  if (service !== undefined) {
    const [namespace, name, ...more] = service.split('/');
    if (!namespace || !name || more.length > 0) throw usageError(`--service takes NAMESPACE/NAME, not ${service}`);
    return { kind: 'service', namespace, name };
  }
  if (!annotation) return defaultService;
  const url = urlOf(annotation);
  // Said by whoever wrote the namespace, not by the user: the token must not leave in the clear.
  if (!url || (url.protocol === 'http:' && !loopback.has(url.hostname))) {
    throw new PluginError(
      'failed',
      `the namespace's annotation ${endpointAnnotation} is no https URL: ${annotation}`,
      'name the address: --server URL',
    );
  }
  return { kind: 'url', url: baseOf(url) };
}

function urlOf(text: string): URL | undefined {
  const url = URL.parse(text);
  return url && ['http:', 'https:'].includes(url.protocol) && url.hostname !== '' ? url : undefined;
}

const baseOf = (url: URL): string => `${url.origin}${url.pathname}`.replace(/\/+$/, '');

/** The annotation of the tenant's namespace; undefined when there is none, or the user may not read the namespace. */
export async function readAnnotation(cluster: Cluster): Promise<string | undefined> {
  try {
    const { metadata } = await cluster.get<KubernetesObject>(
      `/api/v1/namespaces/${encodeURIComponent(cluster.namespace)}`,
    );
    return metadata.annotations?.[endpointAnnotation];
  } catch (error) {
    if (error instanceof KubernetesRefusal && error.status === 403) return undefined;
    if (error instanceof KubernetesRefusal && error.status === 404) {
      throw new PluginError('notFound', `there is no namespace ${cluster.namespace}`, "name the tenant's: -n NAME");
    }
    throw error;
  }
}
