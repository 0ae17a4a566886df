// A connection that sends raw bytes and reads HTTP/1.1 responses with a timeout. HTTP libraries refuse to send
// malformed requests.
import { connect, type Socket } from 'node:net';

/** A received response. */
export interface FuzzResponse {
  status: number;
  /** By lower-case name. */
  headers: Map<string, string>;
  body: string;
}

/** A TCP connection. */
export class Connection {
  private readonly socket: Socket;
  private received = Buffer.alloc(0);
  private isEnded = false;
  private wake: () => void = () => undefined;

  constructor(host: string, port: number) {
    this.socket = connect({ host, port, noDelay: true });
    this.socket.on('data', (chunk: Buffer) => {
      this.received = Buffer.concat([this.received, chunk]);
      this.wake();
    });
    const end = (): void => {
      this.isEnded = true;
      this.wake();
    };
    this.socket.on('error', end);
    this.socket.on('close', end);
    this.socket.on('end', end);
  }

  /** Reports whether the server has closed it. */
  get isClosed(): boolean {
    return this.isEnded;
  }

  send(bytes: Buffer): void {
    this.socket.write(bytes);
  }

  /** Half-closes the connection. */
  finish(): void {
    this.socket.end();
  }

  close(): void {
    this.socket.destroy();
  }

  /**
   * Returns the next response, or undefined if the connection ends first. `method` is that of the request, because a
   * response to HEAD has no body. Throws on a timeout, or if the data is not HTTP.
   */
  async result(method: string, timeoutMilliseconds: number): Promise<FuzzResponse | undefined> {
    const deadline = performance.now() + timeoutMilliseconds;
    for (;;) {
      const parsed = this.parse(method);
      if (parsed) return parsed;
      if (this.isEnded) return undefined;
      const left = deadline - performance.now();
      if (left <= 0) throw new Error(`no response within ${timeoutMilliseconds} ms`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  private parse(method: string): FuzzResponse | undefined {
    const end = this.received.indexOf('\r\n\r\n');
    if (end < 0) return undefined;
    const [first = '', ...lines] = this.received.subarray(0, end).toString('latin1').split('\r\n');
    const status = Number(/^HTTP\/1\.1 (\d{3}) /.exec(first)?.[1]);
    if (!status) throw new Error(`no status line: ${JSON.stringify(first.slice(0, 80))}`);
    const headers = new Map(
      lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 1).trim()]),
    );
    if (status === 100) {
      this.received = this.received.subarray(end + 4);
      return this.parse(method);
    }
    const hasBody = method !== 'HEAD' && status !== 204 && status !== 304;
    if (hasBody && headers.get('transfer-encoding') === 'chunked') return this.parseChunked(status, headers, end + 4);
    const length = hasBody ? Number(headers.get('content-length') ?? Number.NaN) : 0;
    if (Number.isNaN(length)) throw new Error(`a ${status} response without content-length`);
    if (this.received.length < end + 4 + length) return undefined;
    const body = this.received.subarray(end + 4, end + 4 + length).toString();
    this.received = this.received.subarray(end + 4 + length);
    return { status, headers, body };
  }

  /** Parses the body of a streamed response (RFC 9112 section 7.1), which begins at `start`. */
  private parseChunked(status: number, headers: Map<string, string>, start: number): FuzzResponse | undefined {
    const pieces: Buffer[] = [];
    for (let at = start; ;) {
      const lineEnd = this.received.indexOf('\r\n', at);
      if (lineEnd < 0) return undefined;
      const size = this.received.subarray(at, lineEnd).toString('latin1');
      if (!/^[\da-f]+$/i.test(size)) throw new Error(`no chunk size: ${JSON.stringify(size.slice(0, 80))}`);
      const length = Number.parseInt(size, 16);
      const next = lineEnd + 2 + length + 2;
      if (this.received.length < next) return undefined;
      pieces.push(this.received.subarray(lineEnd + 2, lineEnd + 2 + length));
      at = next;
      if (length > 0) continue;
      const body = Buffer.concat(pieces).toString();
      this.received = this.received.subarray(at);
      return { status, headers, body };
    }
  }
}
