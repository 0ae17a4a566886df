// A proxy that forwards to the real API server but handles port-forwards to pods, which need a kubelet, by connecting
// to a local port (protocol v4.channel.k8s.io).
import { once } from 'node:events';
import { createServer, type IncomingMessage, request as plainRequest } from 'node:http';
import { request } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { KubeConfig } from '@kubernetes/client-node';
import { type WebSocket, WebSocketServer } from 'ws';

/** A running proxy. */
export interface PortForwardingApi {
  /** Base URL. */
  url: string;
  /** The port-forwards so far, as `namespace/pod:port`. */
  forwards: string[];
  stop(): Promise<void>;
}

/** Starts a proxy for the cluster of a kubeconfig. Callers authenticate with their own bearer tokens. */
export async function startPortForwardingApi(kubeconfig: string, port: number): Promise<PortForwardingApi> {
  const config = new KubeConfig();
  config.loadFromFile(kubeconfig);
  const cluster = config.getCurrentCluster()!;
  const ca = cluster.caData ? Buffer.from(cluster.caData, 'base64') : undefined;
  const forwards: string[] = [];
  const secure = cluster.server.startsWith('https:');
  const server = createServer((incoming, outgoing) => {
    const { method, headers, url = '' } = incoming;
    const options = { method, headers, ...(ca ? { ca } : {}) };
    const upstream = (secure ? request : plainRequest)(cluster.server + url, options, (response) => {
      outgoing.writeHead(response.statusCode!, response.headers);
      response.pipe(outgoing);
    });
    upstream.once('error', () => outgoing.destroy());
    incoming.pipe(upstream);
  });
  const sockets = new WebSocketServer({ noServer: true, handleProtocols: () => 'v4.channel.k8s.io' });
  server.on('upgrade', (incoming: IncomingMessage, stream, head) => {
    const path = /^\/api\/v1\/namespaces\/([^/]+)\/pods\/([^/]+)\/portforward\?ports=(\d+)$/.exec(incoming.url ?? '');
    if (!path || !incoming.headers.authorization) return stream.destroy();
    forwards.push(`${path[1]}/${path[2]}:${path[3]}`);
    sockets.handleUpgrade(incoming, stream, head, (socket) => carry(socket, Number(path[3]), port));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    forwards,
    stop: async () => {
      for (const socket of sockets.clients) socket.terminate();
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** A port-forward: channel 0 is data, channel 1 errors; each begins with the port in two bytes, little-endian. */
function carry(socket: WebSocket, podPort: number, port: number): void {
  const number = Buffer.from([podPort & 255, podPort >> 8]);
  for (const channel of [0, 1]) socket.send(Buffer.concat([Buffer.from([channel]), number]));
  const pod = connect(port, '127.0.0.1');
  pod.on('data', (data: Buffer) => socket.send(Buffer.concat([Buffer.from([0]), data])));
  pod.once('error', (error) => socket.send(Buffer.concat([Buffer.from([1]), Buffer.from(error.message)])));
  pod.once('close', () => socket.close());
  socket.on('message', (data: Buffer) => void (data[0] === 0 && pod.write(data.subarray(1))));
  socket.once('close', () => pod.destroy());
}
