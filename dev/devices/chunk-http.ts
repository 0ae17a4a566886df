// Sends the requests of one download over one socket, one at a time and with little work for each, so that a test with hundreds of
// devices that download gigabytes does not measure the devices.
import { connect, type Socket } from 'node:net';
import type { HttpResponse, SendHttp } from '@kellet/device';

/** Room for a chunk of 64 KiB and the head of its response. */
const bufferBytes = 96 * 1024;

const endOfHead = Buffer.from('\r\n\r\n');

/** A request that waits for its response. */
interface Waiting {
  readonly resolve: (response: HttpResponse) => void;
  readonly reject: (error: Error) => void;
}

/** The socket of a download. It is opened again after an error. */
export class ChunkHttp {
  private readonly buffer = Buffer.allocUnsafeSlow(bufferBytes);
  private filled = 0;
  private socket: Socket | undefined;
  private waiting: Waiting | undefined;

  /** Sends a GET request without TLS. The body of its response is valid until the next request. */
  readonly send: SendHttp = ({ url, headers, signal }) =>
    new Promise<HttpResponse>((resolve, reject) => {
      signal.throwIfAborted();
      const { hostname, port, pathname, search } = new URL(url);
      const abort = (): void => this.fail(signal.reason as Error);
      signal.addEventListener('abort', abort);
      const settle = (): void => {
        this.waiting = undefined;
        signal.removeEventListener('abort', abort);
      };
      this.filled = 0;
      this.waiting = {
        resolve: (response) => {
          settle();
          resolve(response);
        },
        reject: (error) => {
          settle();
          reject(error);
        },
      };
      this.socket ??= this.open(hostname, Number(port));
      const lines = Object.entries({ host: `${hostname}:${port}`, ...headers }).map(
        ([name, value]) => `${name}: ${value}\r\n`,
      );
      this.socket.write(`GET ${pathname}${search} HTTP/1.1\r\n${lines.join('')}\r\n`);
    });

  /** Closes the socket. */
  close(): void {
    this.fail(new Error('closed'));
  }

  private open(host: string, port: number): Socket {
    const socket: Socket = connect({
      ...{ host, port, noDelay: true },
      onread: {
        // Straight to its place, without a copy.
        buffer: () => this.buffer.subarray(this.filled),
        callback: (length) => {
          if (socket === this.socket) this.receive(length);
          return true;
        },
      },
    });
    const lose = (error: Error): void => {
      if (socket === this.socket) this.fail(error);
    };
    socket.on('error', lose);
    socket.on('close', () => lose(new Error('the connection was closed')));
    return socket;
  }

  private receive(length: number): void {
    this.filled += length;
    const received = this.buffer.subarray(0, this.filled);
    const end = received.indexOf(endOfHead);
    if (end >= 0) {
      const head = received.toString('latin1', 0, end).toLowerCase();
      const header = (name: string): string | undefined => new RegExp(`\r\n${name}: *([^\r]*)`).exec(head)?.[1];
      const size = Number(header('content-length'));
      const start = end + endOfHead.length;
      if (start + size === this.filled) {
        // Where the next response begins, for which the place of the first read is chosen now.
        this.filled = 0;
        const isLast = header('connection') === 'close';
        this.waiting?.resolve({ status: Number(head.slice(9, 12)), header, body: received.subarray(start) });
        if (isLast) this.fail(new Error('the connection was closed'));
        return;
      }
      // The platform always sends a length, and never more than fits the buffer.
      if (!(start + size > this.filled && start + size <= bufferBytes))
        this.fail(new Error(`unexpected response: ${head}`));
    } else if (this.filled === bufferBytes) this.fail(new Error('unexpected response'));
  }

  private fail(error: Error): void {
    const { socket, waiting } = this;
    this.socket = undefined;
    socket?.destroy();
    waiting?.reject(error);
  }
}
