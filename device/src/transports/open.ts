// Chooses the protocol by the scheme of its address, and loads only the packages that it needs.
import { nodeHttp } from './node-http.ts';
import { RestProtocol } from './rest.ts';
import type { Protocol, TlsOptions } from './transport.ts';

/** Settings of a connection. */
export interface ConnectionOptions {
  tls?: TlsOptions;
  /** Sockets (REST) or connections (gRPC) that the devices of this process share at most. */
  connections?: number;
  /** Address of the REST API, `https://…`, which a gateway over MQTT needs for its children. */
  restUrl?: string | undefined;
}

/** The protocol of each scheme, and the packages that it needs. */
const schemes: Readonly<Record<string, { name: 'rest' | 'grpc' | 'mqtt'; packages: string }>> = {
  ...Object.fromEntries(['http:', 'https:'].map((scheme) => [scheme, { name: 'rest', packages: '' }])),
  ...Object.fromEntries(
    ['grpc:', 'grpcs:'].map((scheme) => [scheme, { name: 'grpc', packages: '@grpc/grpc-js @bufbuild/protobuf' }]),
  ),
  ...Object.fromEntries(
    ['mqtt:', 'mqtts:', 'ws:', 'wss:'].map((scheme) => [scheme, { name: 'mqtt', packages: 'mqtt' }]),
  ),
};

function restAt(url: string, { tls, connections }: ConnectionOptions): RestProtocol {
  const { send, close } = nodeHttp(tls, connections);
  return new RestProtocol(url, send, close);
}

/** Returns the protocol at an address: `https://…` is REST, `grpcs://…` gRPC, and `mqtts://…` or `wss://…` MQTT. */
export async function openProtocol(url: string, options: ConnectionOptions = {}): Promise<Protocol> {
  const scheme = schemes[URL.canParse(url) ? new URL(url).protocol : ''];
  if (!scheme) throw new TypeError(`${url}: the address must begin with one of ${Object.keys(schemes).join('//, ')}//`);
  const { tls, connections, restUrl } = options;
  try {
    switch (scheme.name) {
      case 'rest': {
        return restAt(url, options);
      }
      case 'grpc': {
        const { GrpcProtocol } = await import('./grpc.ts');
        return new GrpcProtocol(url, { ...(tls && { tls }), ...(connections !== undefined && { connections }) });
      }
      case 'mqtt': {
        const { MqttProtocol } = await import('./mqtt.ts');
        return new MqttProtocol(url, tls, restUrl === undefined ? undefined : restAt(restUrl, { tls, connections }));
      }
    }
  } catch (error) {
    if ((error as { code?: unknown }).code !== 'ERR_MODULE_NOT_FOUND') throw error;
    throw new Error(`${url} needs packages that are not installed: npm install ${scheme.packages}`, { cause: error });
  }
}
