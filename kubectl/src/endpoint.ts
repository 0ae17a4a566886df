// Locates the data plane: from the command line, else the annotation of the tenant's namespace, else the chart's
// Service.
import { endpointAnnotation } from '@kellet/crds';
import { namespaces } from '@kellet/kubernetes';
import { type Cluster, ClusterError } from './cluster.ts';
import { PluginError, usageError } from './errors.ts';

/** A base URL, or a Service to forward to. */
export type Endpoint =
  | { readonly kind: 'url'; readonly url: string }
  | { readonly kind: 'service'; readonly namespace: string; readonly name: string };

/** Service of the chart with default values. */
export const defaultService = { kind: 'service', namespace: 'kellet-system', name: 'kellet-apiserver' } as const;

/** Sources of the address. */
export interface EndpointHints {
  /** --server or $KELLET_SERVER. */
  readonly server?: string | undefined;
  /** --service. */
  readonly service?: string | undefined;
  /** The annotation kellet.dev/endpoint of the tenant's namespace. */
  readonly annotation?: string | undefined;
}

const loopback = new Set(['127.0.0.1', '[::1]', 'localhost']);

/** Chooses the endpoint. Throws PluginError for an invalid URL or Service, and for an annotation without TLS. */
export function chooseEndpoint({ server, service, annotation }: EndpointHints): Endpoint {
  if (server) {
    const url = urlOf(server);
    if (!url) throw usageError(`--server takes a URL such as https://kellet.example.com, not ${server}`);
    return { kind: 'url', url: baseOf(url) };
  }
  if (service !== undefined) {
    const [namespace, name, ...more] = service.split('/');
    if (!namespace || !name || more.length > 0) throw usageError(`--service takes NAMESPACE/NAME, not ${service}`);
    return { kind: 'service', namespace, name };
  }
  if (!annotation) return defaultService;
  const url = urlOf(annotation);
  // The annotation was not written by the user, so it must not cause the token to be sent unencrypted.
  if (!url || (url.protocol === 'http:' && !loopback.has(url.hostname))) {
    throw new PluginError(
      'failed',
      `the namespace's annotation ${endpointAnnotation} is not an https URL: ${annotation}`,
      'use --server URL',
    );
  }
  return { kind: 'url', url: baseOf(url) };
}

function urlOf(text: string): URL | undefined {
  const url = URL.parse(text);
  return url && ['http:', 'https:'].includes(url.protocol) && url.hostname !== '' ? url : undefined;
}

const baseOf = (url: URL): string => `${url.origin}${url.pathname}`.replace(/\/+$/, '');

/** Returns the annotation of the tenant's namespace, or undefined if there is none or the namespace may not be read. */
export async function readAnnotation(cluster: Cluster): Promise<string | undefined> {
  try {
    const { metadata } = await cluster.get(namespaces, cluster.namespace);
    return metadata.annotations?.[endpointAnnotation];
  } catch (error) {
    const failure = error instanceof ClusterError ? error.failure : undefined;
    if (failure === 'forbidden') return undefined;
    if (failure === 'notFound') {
      throw new PluginError(
        'notFound',
        `namespace ${cluster.namespace} not found`,
        "use -n NAME with the tenant's namespace",
      );
    }
    throw error;
  }
}
