// Listeners of the ports that terminate TLS. The public ones ask for a client certificate, but do not require one, and do not
// judge it: a handshake only proves that the client holds its private key. The credential's record says whose it is. With an
// authority (the control port) the handshake fails without a certificate that it has signed.
import { createServer, type Server, type TlsOptions, type TLSSocket } from 'node:tls';
import { limitConnections } from '../addresses/limit-connections.ts';
import type { Logger } from '../observability/logger.ts';
import type { TlsFiles } from './tls-files.ts';

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
  const fixed = { minVersion: 'TLSv1.2', ...options } as const;
  const certificate = files.read();
  const server = createServer(
    { ...fixed, ...certificate, requestCert: true, rejectUnauthorized: certificate.ca !== undefined },
    (socket: TLSSocket) => accept(socket),
  );
  limitConnections(server, connections);
  server.on('tlsClientError', (error, socket) => {
    logger.debug({ err: error }, 'a TLS handshake failed');
    // Node leaves it open when the handshake has not ended in time.
    socket.destroy();
  });
  files.follow((certificate) => server.setSecureContext({ ...fixed, ...certificate }));
  return server;
}
