// Connections on which TLS works on what strangers send, in the thread that serves everybody: a handshake alone can be made to take
// a second, by a chain of certificates with keys that take milliseconds each, all of whose signatures OpenSSL verifies before anybody
// is asked. So the bytes of a handshake are few, and those of all connections of an owner are passed on only as long as the work that
// they cause is a share of the time.
import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { LRUCache } from 'lru-cache';

/** More than is sent until a handshake is complete: a chain of four certificates with RSA 4096 has 8 KiB. */
const handshakeBytes = 16 * 1024;

/** Records in a read of which each takes little of the time. */
const fewRecords = 32;

/** Bytes of the header of a record, the last two of which are its length (RFC 8446, section 5.1). */
const recordHeaderBytes = 5;

/** Counts the records of TLS that begin in what is read. */
class RecordCounter {
  /** Bytes until the next record begins. */
  private left = 0;
  /** How many bytes of a header have been read. */
  private headerBytes = 0;
  /** The first byte of the length in the header that is being read. */
  private lengthBegin = 0;

  count(bytes: Buffer): number {
    let records = 0;
    for (let at = 0; at < bytes.length;) {
      if (this.left > 0) {
        const skipped = Math.min(this.left, bytes.length - at);
        this.left -= skipped;
        at += skipped;
        continue;
      }
      const byte = bytes[at]!;
      at += 1;
      this.headerBytes += 1;
      if (this.headerBytes === recordHeaderBytes - 1) this.lengthBegin = byte;
      if (this.headerBytes < recordHeaderBytes) continue;
      this.left = this.lengthBegin * 256 + byte;
      this.headerBytes = 0;
      records += 1;
    }
    return records;
  }
}

/** The time that was spent on connections, by owner. */
export class SpentTimes {
  private readonly spent = new LRUCache<string, { milliseconds: number; at: number }>({ max: 10_000 });
  private readonly share: number;
  private readonly burst: number;

  /** An owner may use a share of the time, and so many milliseconds at once. */
  constructor(share: number, burst: number) {
    this.share = share;
    this.burst = burst;
  }

  /** Adds time that was spent on a connection of an owner. */
  add(owner: string, milliseconds: number): void {
    this.spent.set(owner, { milliseconds: this.current(owner) + milliseconds, at: performance.now() });
  }

  /** Returns for how many milliseconds nothing more should be done for an owner. */
  wait(owner: string): number {
    return Math.max(0, this.current(owner) - this.burst) / this.share;
  }

  private current(owner: string): number {
    const spent = this.spent.get(owner);
    return spent ? Math.max(0, spent.milliseconds - (performance.now() - spent.at) * this.share) : 0;
  }
}

/** Who has a connection, and the times that it counts towards. */
export interface Meter {
  readonly owner: string;
  readonly times: SpentTimes;
  /**
   * Whether, after the handshake, only reads of many records are metered: one may hold thousands that change keys, or have one byte,
   * each of which takes many microseconds.
   */
  readonly untilOpen?: boolean;
}

/** Passes bytes between a socket and TLS, those of the peer as the times of its owner allow. */
export class MeteredConnection extends Duplex {
  /** What is being worked on. */
  static current: MeteredConnection | undefined;
  readonly socket: Socket;
  private readonly meter: Meter;
  private isOpen = false;
  private readonly records = new RecordCounter();
  /** What was read with many records. */
  private readonly costly = new WeakSet<Buffer>();
  private received = 0;
  private waiting: NodeJS.Timeout | undefined;
  private hasEnded = false;

  constructor(socket: Socket, meter: Meter) {
    super();
    this.socket = socket;
    this.meter = meter;
    socket.on('data', (bytes: Buffer) => {
      // Otherwise all reads are metered.
      if (meter.untilOpen && this.records.count(bytes) > fewRecords) this.costly.add(bytes);
      this.pass(bytes);
    });
    socket.on('end', () => {
      this.hasEnded = true;
      if (!this.waiting) this.push(null);
    });
    socket.on('error', (error) => this.destroy(error));
    socket.on('close', () => {
      if (!this.hasEnded) this.destroy();
    });
  }

  private isMetered(bytes: Buffer): boolean {
    return !(this.isOpen && this.meter.untilOpen) || this.costly.has(bytes);
  }

  /** The handshake is complete. */
  open(): void {
    this.isOpen = true;
  }

  /** Whoever listens works on the bytes at once: TLS, and HTTP on what it has decrypted. */
  override emit(event: string | symbol, ...values: unknown[]): boolean {
    if (event !== 'data' || !this.isMetered(values[0] as Buffer)) return super.emit(event, ...values);
    const began = performance.now();
    MeteredConnection.current = this;
    try {
      return super.emit(event, ...values);
    } finally {
      MeteredConnection.current = undefined;
      this.meter.times.add(this.meter.owner, performance.now() - began);
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

  private pass(bytes: Buffer): void {
    const wait = this.isMetered(bytes) ? this.meter.times.wait(this.meter.owner) : 0;
    if (wait > 0) return this.passLater(bytes, wait);
    // What follows a handshake may come with it.
    const part = this.isOpen ? bytes : bytes.subarray(0, handshakeBytes - this.received);
    if (part.length === 0) {
      this.destroy(new Error(`the peer has sent more than ${handshakeBytes} bytes in its handshake`));
      return;
    }
    this.received += part.length;
    const rest = bytes.subarray(part.length);
    if (this.costly.has(bytes)) this.costly.add(part).add(rest);
    const hasRoom = this.push(part);
    if (rest.length > 0) return this.passLater(rest, 0);
    if (hasRoom) this.socket.resume();
    else this.socket.pause();
    // Also a socket that is paused ends.
    if (this.hasEnded) this.push(null);
  }

  /** Meanwhile others of the owner may take time. */
  private passLater(bytes: Buffer, milliseconds: number): void {
    this.socket.pause();
    this.waiting = setTimeout(() => {
      this.waiting = undefined;
      this.pass(bytes);
    }, milliseconds);
  }
}
