// Listeners of the ports that terminate TLS. The public ones ask for a client certificate, but do not require one, and do not
// judge it: a handshake only proves that the client holds its private key. The credential's record says whose it is. With an
// authority (the control port) the handshake fails without a certificate that it has signed.
import { constants } from 'node:crypto';
import { createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer, type TlsOptions, type TLSSocket } from 'node:tls';
import { addressBlock } from '../addresses/address-block.ts';
import { limitConnections } from '../addresses/limit-connections.ts';
import { MeteredConnection, SpentTimes } from '../metered-connection.ts';
import type { Logger } from '../observability/logger.ts';
import type { TlsFiles } from './tls-files.ts';

/** The share of the time that the handshakes of an address may take, and the milliseconds at once. */
const share = 0.5;
const burstMilliseconds = 300;

/** Settings of a listener. */
export interface TlsListenerOptions extends Pick<
  TlsOptions,
  'ALPNProtocols' | 'ciphers' | 'handshakeTimeout' | 'pskCallback' | 'secureOptions'
> {
  readonly connections: number;
}

/** Creates a listener; the caller starts listening. It follows the files. */
export function createTlsListener(
  files: TlsFiles,
  { connections, ...options }: TlsListenerOptions,
  logger: Logger,
  accept: (socket: TLSSocket) => void,
): Server {
  // A further handshake of TLS 1.2 would not be metered.
  const secureOptions = (options.secureOptions ?? 0) | constants.SSL_OP_NO_RENEGOTIATION;
  const fixed = { minVersion: 'TLSv1.2', ...options, secureOptions } as const;
  const certificate = files.read();
  const server = createTlsServer(
    { ...fixed, ...certificate, requestCert: true, rejectUnauthorized: certificate.ca !== undefined },
    (socket: TLSSocket) => {
      const metered = MeteredConnection.current;
      if (!metered) return void socket.destroy();
      metered.open();
      accept(withAddress(socket, metered.socket));
    },
  );
  server.on('tlsClientError', (error, socket) => {
    logger.debug({ err: error }, 'a TLS handshake failed');
    // Node leaves it open when the handshake has not ended in time.
    socket.destroy();
  });
  files.follow((certificate) => server.setSecureContext({ ...fixed, ...certificate }));
  const times = new SpentTimes(share, burstMilliseconds);
  const front = createServer((socket) => {
    // TLS cannot reach it through the connection between them.
    socket.setNoDelay();
    const owner = addressBlock(socket.remoteAddress ?? '');
    server.emit('connection', new MeteredConnection(socket, { owner, times, untilOpen: true }));
  });
  limitConnections(front, connections);
  return front;
}

/** Gives a connection over TLS the addresses of the socket below it. */
function withAddress(secure: TLSSocket, { remoteAddress, remotePort, remoteFamily }: Socket): TLSSocket {
  return Object.defineProperties(secure, {
    remoteAddress: { value: remoteAddress },
    remotePort: { value: remotePort },
    remoteFamily: { value: remoteFamily },
  });
}
