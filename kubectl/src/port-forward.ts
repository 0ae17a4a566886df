// A way to the data plane's Service through the API server: each connection of the HTTP client is one port-forward stream, so
// that no local port is opened that others on this machine could use.
import http from 'node:http';
import { Duplex, PassThrough, Writable } from 'node:stream';
import { PortForward } from '@kubernetes/client-node';
import { type Cluster, KubernetesRefusal } from './cluster.ts';
import { connectionProblem, PluginError } from './errors.ts';

interface Service {
  readonly spec: {
    readonly selector?: Readonly<Record<string, string>>;
    readonly ports?: readonly {
      readonly name?: string;
      readonly port: number;
      readonly targetPort?: number | string;
    }[];
  };
}

/** A pod, as far as choosing one needs it. */
export interface Pod {
  readonly metadata: { readonly name: string; readonly deletionTimestamp?: string };
  readonly spec?: {
    readonly containers?: readonly {
      readonly ports?: readonly { readonly name?: string; readonly containerPort: number }[];
    }[];
  };
  readonly status?: { readonly conditions?: readonly { readonly type: string; readonly status: string }[] };
}

/** Where a port-forward leads. */
export interface Target {
  readonly namespace: string;
  readonly pod: string;
  readonly port: number;
}

/** The first pod that is ready and stays, with the number of its REST port; undefined when there is none. */
export function choosePod(service: Service, pods: readonly Pod[]): { pod: string; port: number } | undefined {
  const ports = service.spec.ports ?? [];
  const { targetPort, port } = ports.find(({ name }) => name === 'rest') ?? ports[0] ?? { port: 8080 };
  const pod = pods.find(
    ({ metadata, status }) =>
      metadata.deletionTimestamp === undefined &&
      status?.conditions?.some((condition) => condition.type === 'Ready' && condition.status === 'True'),
  );
  if (!pod) return undefined;
  if (typeof targetPort === 'number') return { pod: pod.metadata.name, port: targetPort };
  const named = pod.spec?.containers
    ?.flatMap((container) => container.ports ?? [])
    .find(({ name }) => name === targetPort);
  return { pod: pod.metadata.name, port: named?.containerPort ?? port };
}

/** Finds a ready pod of a Service. Throws PluginError when there is none, or the user may not look. */
export async function findTarget(cluster: Cluster, namespace: string, name: string): Promise<Target> {
  const otherwise = 'name it: --service NAMESPACE/NAME, or the address of the REST API: --server URL';
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}`;
  try {
    const service = await cluster.get<Service>(`${path}/services/${encodeURIComponent(name)}`);
    const selector = Object.entries(service.spec.selector ?? {}).map(([key, value]) => `${key}=${value}`);
    const query = encodeURIComponent(selector.join(','));
    const { items } = await cluster.get<{ items: Pod[] }>(`${path}/pods?labelSelector=${query}`);
    const chosen = selector.length > 0 ? choosePod(service, items) : undefined;
    if (!chosen)
      throw new PluginError('unavailable', `the Service ${namespace}/${name} has no pod that is ready`, otherwise);
    return { namespace, ...chosen };
  } catch (error) {
    if (!(error instanceof KubernetesRefusal)) throw error;
    if (error.status === 404) throw new PluginError('notFound', `there is no Service ${namespace}/${name}`, otherwise);
    if (error.status === 403) {
      throw new PluginError(
        'denied',
        `you may not forward to the Service ${namespace}/${name}: ${error.message}`,
        otherwise,
      );
    }
    throw error;
  }
}

/** An agent whose connections are port-forward streams to the target. */
export function portForwardAgent(cluster: Cluster, target: Target): http.Agent {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  agent.createConnection = (_options, done) => {
    openStream(cluster, target).then(
      (stream) => done?.(null, stream),
      // The type of node's callback wants a stream beside the error; there is none.
      (error: Error) => done?.(error, undefined as unknown as Duplex),
    );
    return undefined;
  };
  return agent;
}

async function openStream(cluster: Cluster, { namespace, pod, port }: Target): Promise<Duplex> {
  const towardsPod = new PassThrough();
  const stream = new Duplex({
    allowHalfOpen: false,
    read: () => undefined,
    write: (chunk: Buffer, _encoding, done) => void towardsPod.write(chunk, done),
    final: (done) => void towardsPod.end(done),
    destroy: (error, done) => {
      towardsPod.destroy();
      done(error);
    },
  });
  const fromPod = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      stream.push(chunk);
      done();
    },
  });
  const problems = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      if (chunk.length > 0) stream.destroy(new Error(chunk.toString('utf8').trim()));
      done();
    },
  });
  try {
    const socket = await new PortForward(cluster.config, false).portForward(
      namespace,
      pod,
      [port],
      fromPod,
      problems,
      towardsPod,
    );
    if (typeof socket !== 'function') {
      socket.onclose = () => stream.push(null);
      socket.onerror = () => stream.destroy(new Error('the port-forward was interrupted'));
      stream.once('close', () => socket.close());
    }
    return withSocketMethods(stream);
  } catch (error) {
    const { message } = error as { message?: string };
    throw new PluginError(
      'unavailable',
      `no port-forward to ${namespace}/${pod}: ${message ?? connectionProblem(error)}`,
      `may you? kubectl auth can-i create pods --subresource=portforward -n ${namespace}`,
    );
  }
}

/** node:http calls these of a socket; a stream of ours has no timers and keeps nobody alive. */
function withSocketMethods(stream: Duplex): Duplex {
  const self = () => stream;
  return Object.assign(stream, { setTimeout: self, setNoDelay: self, setKeepAlive: self, ref: self, unref: self });
}
