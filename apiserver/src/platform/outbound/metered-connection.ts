// Connections over TLS to servers that tenants choose. What a server sends is worked on in the process's own thread, where a
// handshake alone can be made to take a second: by large parameters, or by a chain of certificates with keys that take
// milliseconds each, all of which OpenSSL verifies before anybody is asked. So the bytes of a handshake are few, and those of
// all servers of an owner are passed on only as long as the work that they cause is a small share of the time.
import { connect as connectTcp, isIP, type LookupFunction, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { connect as connectTls, DEFAULT_CIPHERS, type TLSSocket } from 'node:tls';
import { LRUCache } from 'lru-cache';

/** The share of the time that the servers of an owner may take, and the milliseconds at once. */
const share = 0.2;
const burstMilliseconds = 100;

/** More than servers send until a handshake is complete: a chain of four certificates with RSA 4096 has 8 KiB. */
const handshakeBytes = 16 * 1024;

/** How long a connection may take to be accepted. */
const connectMilliseconds = 10_000;

/** The parameters of finite-field Diffie-Hellman are the server's: those of 10,000 bits, the most, take a second. */
const ciphers = `${DEFAULT_CIPHERS}:!DHE`;
const groups = 'X25519:P-256:P-384:P-521';

/** The time that servers have taken, by owner. */
export class ServerTimes {
  private readonly taken = new LRUCache<string, { milliseconds: number; at: number }>({ max: 10_000 });

  /** Adds time that a server of an owner has taken. */
  add(owner: string, milliseconds: number): void {
    this.taken.set(owner, { milliseconds: this.current(owner) + milliseconds, at: performance.now() });
  }

  /** Returns for how many milliseconds nothing should be taken from servers of an owner. */
  wait(owner: string): number {
    return Math.max(0, this.current(owner) - burstMilliseconds) / share;
  }

  private current(owner: string): number {
    const taken = this.taken.get(owner);
    return taken ? Math.max(0, taken.milliseconds - (performance.now() - taken.at) * share) : 0;
  }
}

/** Where to connect, on whose behalf. */
export interface MeteredTarget {
  /** A DNS name or an IP address, the latter without brackets. */
  readonly host: string;
  readonly port: number;
  readonly lookup: LookupFunction;
  readonly owner: string;
  readonly times: ServerTimes;
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
    const secure: TLSSocket = connectTls({
      ...{ socket: metered, host, servername: isIP(host) === 0 ? host : '', ciphers, ecdhCurve: groups },
    });
    secure.once('secureConnect', () => metered.open());
    done(null, secure);
  });
}

/** Passes bytes between a socket and TLS, those of the server as the times of its owner allow. */
class MeteredConnection extends Duplex {
  private readonly socket: Socket;
  private readonly target: MeteredTarget;
  private isOpen = false;
  private received = 0;
  private waiting: NodeJS.Timeout | undefined;
  private hasEnded = false;

  constructor(socket: Socket, target: MeteredTarget) {
    super();
    this.socket = socket;
    this.target = target;
    socket.on('data', (bytes: Buffer) => this.receive(bytes));
    socket.on('end', () => {
      this.hasEnded = true;
      if (!this.waiting) this.push(null);
    });
    socket.on('error', (error) => this.destroy(error));
  }

  /** The handshake is complete. */
  open(): void {
    this.isOpen = true;
  }

  /** Whoever listens works on the bytes at once: TLS, and HTTP on what it has decrypted. */
  override emit(event: string | symbol, ...values: unknown[]): boolean {
    if (event !== 'data') return super.emit(event, ...values);
    const began = performance.now();
    try {
      return super.emit(event, ...values);
    } finally {
      this.target.times.add(this.target.owner, performance.now() - began);
    }
  }

  override _read(): void {
    if (!this.waiting) this.socket.resume();
  }

  override _write(bytes: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    this.socket.write(bytes, done);
  }

  override _final(done: () => void): void {
    this.socket.end(done);
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.waiting);
    this.socket.destroy();
    done(error);
  }

  private receive(bytes: Buffer): void {
    this.received += bytes.length;
    if (this.isOpen || this.received <= handshakeBytes) return this.pass(bytes);
    this.destroy(new Error(`the server has sent more than ${handshakeBytes} bytes in its handshake`));
  }

  private pass(bytes: Buffer): void {
    const wait = this.target.times.wait(this.target.owner);
    if (wait > 0) {
      this.socket.pause();
      this.waiting = setTimeout(() => {
        this.waiting = undefined;
        // Others of the owner may have taken time meanwhile.
        this.pass(bytes);
      }, wait);
      return;
    }
    if (this.push(bytes)) this.socket.resume();
    else this.socket.pause();
    // Also a socket that is paused ends.
    if (this.hasEnded) this.push(null);
  }
}
