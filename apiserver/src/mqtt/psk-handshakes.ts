// TLS-PSK on the MQTT port: which pre-shared key a handshake has used.
import { constants } from 'node:crypto';
import { DEFAULT_CIPHERS, type TLSSocket } from 'node:tls';
import type { DeviceProof } from '../auth/credentials/device-proof.ts';
import type { PreSharedKeys } from '../auth/device-credentials/pre-shared-keys.ts';
import type { TlsListenerOptions } from '../platform/tls/tls-listener.ts';

/** The keys suit only SHA-256, so its cipher of TLS 1.3 comes first. Node's own list excludes PSK. */
const firstCipher = 'TLS_AES_128_GCM_SHA256';
const pskCiphers = [
  ...['ECDHE-PSK-CHACHA20-POLY1305', 'ECDHE-PSK-AES128-CBC-SHA256', 'DHE-PSK-AES128-GCM-SHA256'],
  ...['DHE-PSK-AES256-GCM-SHA384', 'PSK-AES128-GCM-SHA256', 'PSK-AES256-GCM-SHA384', 'PSK-AES128-CCM'],
];
const ciphers = [
  firstCipher,
  ...DEFAULT_CIPHERS.split(':').filter((cipher) => cipher !== firstCipher && cipher !== '!PSK'),
  // HIGH includes ciphers with PSK that are not wanted.
  ...['-PSK', ...pskCiphers],
].join(':');

/** Follows handshakes. */
export class PskHandshakes {
  /** The identities whose keys a handshake asked for. */
  private readonly asked = new WeakMap<TLSSocket, Set<string>>();
  /** Options of the listener. */
  readonly options: Pick<TlsListenerOptions, 'ciphers' | 'pskCallback' | 'secureOptions'>;

  constructor(keys: PreSharedKeys) {
    this.options = {
      ciphers,
      // A resumed session does not show which key started it.
      secureOptions: constants.SSL_OP_NO_TICKET,
      pskCallback: (socket, identity) => {
        const key = keys.keyOf(identity);
        if (!key) return null;
        const identities = this.asked.get(socket) ?? new Set();
        this.asked.set(socket, identities.add(identity));
        return key;
      },
    };
  }

  /**
   * Returns the identity whose key a complete handshake has used. A lookup of the key proves nothing: in TLS 1.3 a client
   * may offer an identity, with or without its key, and then agree on a cipher that does not go with it. The handshake
   * then continues with the server's certificate.
   */
  proofOf(socket: TLSSocket): DeviceProof | undefined {
    const [identity, ...others] = this.asked.get(socket) ?? [];
    if (identity === undefined || others.length > 0) return undefined;
    // There are no tickets, so what TLS 1.3 resumes is the pre-shared key.
    const isUsed =
      socket.getProtocol() === 'TLSv1.3' ? socket.isSessionReused() : /(^|-)PSK-/.test(socket.getCipher().name);
    return isUsed ? { kind: 'psk', identity } : undefined;
  }
}
