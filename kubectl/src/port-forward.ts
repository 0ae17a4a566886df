// Connects to the data plane's Service through the API server. Each connection of the HTTP client is one port-forward
// stream, so no local port is opened that others on this machine could use.
import http from 'node:http';
import { Duplex, PassThrough, Writable } from 'node:stream';
import { type KubernetesObject, pods, services } from '@kellet/kubernetes';
import { PortForward } from '@kubernetes/client-node';
import { type Cluster, ClusterError } from './cluster.ts';
import { connectionProblem, PluginError } from './errors.ts';

interface Service extends KubernetesObject {
  readonly spec: {
    readonly selector?: Readonly<Record<string, string>>;
    readonly ports?: readonly {
      readonly name?: string;
      readonly port: number;
      readonly targetPort?: number | string;
    }[];
  };
}

/** Fields of a pod needed to choose one. */
export interface Pod extends KubernetesObject {
  readonly spec?: {
    readonly containers?: readonly {
      readonly ports?: readonly { readonly name?: string; readonly containerPort: number }[];
    }[];
  };
  readonly status?: { readonly conditions?: readonly { readonly type: string; readonly status: string }[] };
}

/** Target of a port-forward. */
export interface Target {
  readonly namespace: string;
  readonly pod: string;
  readonly port: number;
}

/** Returns the first ready pod that is not terminating, with its REST port, or undefined. */
export function choosePod(
  service: Pick<Service, 'spec'>,
  pods: readonly Pod[],
): { pod: string; port: number } | undefined {
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

/** Finds a ready pod of a Service. Throws PluginError if there is none or access is denied. */
export async function findTarget(cluster: Cluster, namespace: string, name: string): Promise<Target> {
  const otherwise = 'use --service NAMESPACE/NAME, or --server URL with the address of the REST API';
  try {
    const service = await cluster.get<Service>(services, name, namespace);
    const selector = Object.entries(service.spec.selector ?? {}).map(([key, value]) => `${key}=${value}`);
    const { items } = await cluster.list<Pod>(pods, { labelSelector: selector.join(',') }, namespace);
    const chosen = selector.length > 0 ? choosePod(service, items) : undefined;
    if (!chosen) throw new PluginError('unavailable', `Service ${namespace}/${name} has no ready pod`, otherwise);
    return { namespace, ...chosen };
  } catch (error) {
    if (!(error instanceof ClusterError)) throw error;
    if (error.failure === 'notFound')
      throw new PluginError('notFound', `Service ${namespace}/${name} not found`, otherwise);
    if (error.failure === 'forbidden') {
      throw new PluginError(
        'denied',
        `not allowed to port-forward to Service ${namespace}/${name}: ${error.message}`,
        otherwise,
      );
    }
    throw error;
  }
}

/** Creates an agent whose connections are port-forward streams to the target. */
export function portForwardAgent(cluster: Cluster, target: Target): http.Agent {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
  agent.createConnection = (_options, done) => {
    openStream(cluster, target).then(
      (stream) => done?.(null, stream),
      // The type of the callback requires a stream besides the error.
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
      `port-forward to ${namespace}/${pod} failed: ${message ?? connectionProblem(error)}`,
      `check your permission: kubectl auth can-i create pods --subresource=portforward -n ${namespace}`,
    );
  }
}

/** Socket methods called by node:http. This stream has no timers and does not keep the process alive. */
function withSocketMethods(stream: Duplex): Duplex {
  const self = () => stream;
  return Object.assign(stream, { setTimeout: self, setNoDelay: self, setKeepAlive: self, ref: self, unref: self });
}
