// Connections over TLS to servers that tenants choose.
import { constants } from 'node:crypto';
import { connect as connectTcp, isIP, type LookupFunction } from 'node:net';
import type { Duplex } from 'node:stream';
import { connect as connectTls, DEFAULT_CIPHERS } from 'node:tls';
import { MeteredConnection, type SpentTimes } from '../metered-connection.ts';

/** How long a connection may take to be accepted. */
const connectMilliseconds = 10_000;

/** The parameters of finite-field Diffie-Hellman are the server's: those of 10,000 bits, the most, take a second. */
const ciphers = `${DEFAULT_CIPHERS}:!DHE`;
const groups = 'X25519:P-256:P-384:P-521';

/** Where to connect, on whose behalf. */
export interface MeteredTarget {
  /** A DNS name or an IP address, the latter without brackets. */
  readonly host: string;
  readonly port: number;
  readonly lookup: LookupFunction;
  readonly owner: string;
  readonly times: SpentTimes;
}

/** Connects, and calls back with a connection over TLS whose handshake has begun, or with the error. */
export function connectMetered(
  target: MeteredTarget,
  signal: AbortSignal | undefined,
  done: (error: Error | null, socket: Duplex) => void,
): void {
  const { host, port, lookup } = target;
  const socket = connectTcp({ host, port, lookup, ...(signal ? { signal } : {}) });
  const failed = (error: Error): void => done(error, socket);
  // An aborted request without a socket learns of its end only with one.
  const late = setTimeout(
    () => socket.destroy(new Error('the server does not accept a connection')),
    connectMilliseconds,
  );
  socket.once('error', failed);
  socket.once('close', () => clearTimeout(late));
  socket.once('connect', () => {
    clearTimeout(late);
    socket.off('error', failed);
    const metered = new MeteredConnection(socket, target);
    const secure = connectTls({
      ...{ socket: metered, host, servername: isIP(host) === 0 ? host : '', ciphers, ecdhCurve: groups },
      // A further handshake could have any length.
      secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
    });
    secure.once('secureConnect', () => metered.open());
    done(null, secure);
  });
}
