// A client of S3-compatible services: signed requests (AWS Signature Version 4) for the few operations that Kellet needs.
import { createHash, createHmac, type Hash, type Hmac } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import { text } from 'node:stream/consumers';
import type { SignatureV4 } from '@smithy/signature-v4';
import { sleep } from '../clock.ts';
import { traceRequestTo } from '../outbound/outgoing-call.ts';

/** How to reach a service. */
export interface S3Settings {
  /** Base URL; empty for Amazon S3 of the region. */
  readonly endpoint: string;
  readonly region: string;
  readonly accessKey: string;
  readonly secretKey: string;
  /** Of temporary credentials. */
  readonly sessionToken?: string;
  /** How long to wait for the headers of a response, and for further bytes of it; by default 10 s for reads, 30 s for the rest. */
  readonly idleMilliseconds?: number;
}

/** The service refused a request or failed. */
export class S3Error extends Error {
  readonly status: number;
  /** The service's code, such as NoSuchKey; empty if it sent none. */
  readonly code: string;
  constructor(status: number, code: string) {
    super(`the S3 service returned ${status}${code === '' ? '' : ` (${code})`}`);
    this.name = 'S3Error';
    this.status = status;
    this.code = code;
  }
}

/** The service does not respond, or no longer. */
class S3StallError extends Error {
  constructor() {
    super('the S3 service does not respond');
    this.name = 'S3StallError';
  }
}

/** Options of a request. */
export interface S3RequestOptions {
  /** Bytes of an object: first and last. */
  readonly range?: readonly [number, number];
  readonly signal?: AbortSignal;
  /** Instead of the client's own. */
  readonly idleMilliseconds?: number;
}

interface Request {
  readonly method: 'GET' | 'PUT' | 'DELETE';
  readonly bucket: string;
  readonly key?: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Buffer;
  readonly signal?: AbortSignal | undefined;
  readonly idleMilliseconds?: number;
}

/** Attempts of a request whose failure may pass, and the delay before the second. */
const attempts = 4;
const retryMilliseconds = 100;
/** Attempts that may stall: the first may have used a connection that has died unnoticed. */
const stalledAttempts = 2;
const idleMilliseconds = 30_000;
/** Callers wait for reads: two attempts must take less than the half minute after which clients give up. */
const readIdleMilliseconds = 10_000;
/** Error bodies are short; more is not read. */
const maximumErrorBytes = 64 * 1024;
const objectsPerPage = '1000';

/** Node's SHA-256, as the signer wants it. */
class Sha256 {
  private readonly secret: string | Uint8Array | undefined;
  private hash: Hash | Hmac;
  constructor(secret?: string | ArrayBuffer | ArrayBufferView) {
    this.secret = secret as string | Uint8Array | undefined;
    this.hash = this.fresh();
  }
  update(data: Uint8Array): void {
    this.hash.update(data);
  }
  digest(): Promise<Uint8Array> {
    return Promise.resolve(this.hash.digest());
  }
  reset(): void {
    this.hash = this.fresh();
  }
  private fresh(): Hash | Hmac {
    return this.secret === undefined ? createHash('sha256') : createHmac('sha256', this.secret);
  }
}

/** Returns the options of a request that say how it connects. */
type Connection = (signal: AbortSignal | undefined) => http.RequestOptions;

/** A client with one set of credentials. */
export class S3Client {
  private readonly endpoint: URL;
  private readonly settings: S3Settings;
  private readonly connection: Connection | undefined;
  private readonly agent: http.Agent | undefined;
  private signer: Promise<SignatureV4> | undefined;

  /**
   * `connection` returns how a request connects, for an endpoint that a tenant chose; connections are then not reused, because each
   * has to be judged.
   */
  constructor(settings: S3Settings, connection?: Connection) {
    this.settings = settings;
    this.endpoint = new URL(settings.endpoint || `https://s3.${settings.region}.amazonaws.com`);
    this.connection = connection;
    const { Agent } = this.endpoint.protocol === 'https:' ? https : http;
    this.agent = connection ? undefined : new Agent({ keepAlive: true, maxSockets: 64 });
  }

  /** Opens an object, or a range of it. The caller reads or destroys the response. Throws S3Error. */
  async open(bucket: string, key: string, options: S3RequestOptions = {}): Promise<http.IncomingMessage> {
    const { range, signal, idleMilliseconds: idle } = options;
    const headers = range && { range: `bytes=${range[0]}-${range[1]}` };
    return this.send({
      ...{ method: 'GET', bucket, key, signal },
      ...(headers && { headers }),
      ...(idle !== undefined && { idleMilliseconds: idle }),
    });
  }

  /** Returns `length` bytes of an object from `offset` on, fewer at its end, retrying if the connection breaks. Throws S3Error. */
  read(bucket: string, key: string, offset: number, length: number): Promise<Buffer> {
    return retrying(async () => {
      const response = await this.open(bucket, key, {
        range: [offset, offset + length - 1],
        idleMilliseconds: this.settings.idleMilliseconds ?? readIdleMilliseconds,
      });
      const pieces: Buffer[] = [];
      let received = 0;
      // A service that ignores the range sends the whole object.
      if (response.statusCode !== 206 && offset > 0) throw new S3Error(response.statusCode ?? 0, 'RangeIgnored');
      for await (const piece of response as AsyncIterable<Buffer>) {
        pieces.push(piece);
        received += piece.length;
        // One that ends here is read to its end, so that its connection is used again.
        if (received > length || (received === length && response.statusCode !== 206)) break;
      }
      return Buffer.concat(pieces, received).subarray(0, length);
    });
  }

  /** Writes an object. It is durable when this resolves. */
  put(bucket: string, key: string, body: Buffer): Promise<void> {
    return retrying(() => this.finish({ method: 'PUT', bucket, key, body }));
  }

  /** Copies an object within a bucket. Throws S3Error. */
  copy(bucket: string, from: string, to: string): Promise<void> {
    const source = [bucket, ...from.split('/')].map(encode).join('/');
    return retrying(async () => {
      const headers = { 'x-amz-copy-source': `/${source}` };
      const response = await this.send({ method: 'PUT', bucket, key: to, headers });
      // The service may report a failure after it has begun to respond.
      if (/<Error>/.test(await text(response))) throw new S3Error(500, 'CopyFailed');
    });
  }

  /** Deletes an object; one that does not exist is no error. */
  delete(bucket: string, key: string): Promise<void> {
    return retrying(async () => {
      await this.finish({ method: 'DELETE', bucket, key }).catch((error: unknown) => {
        if (!(error instanceof S3Error && error.code === 'NoSuchKey')) throw error;
      });
    });
  }

  /** Returns keys that begin with the prefix, in order: up to a thousand after `after`. */
  list(bucket: string, prefix: string, after = ''): Promise<string[]> {
    return retrying(async () => {
      const page = {
        'max-keys': objectsPerPage,
        'encoding-type': 'url',
        ...(after !== '' && { 'start-after': after }),
      };
      const query = { 'list-type': '2', prefix, ...page };
      const body = await text(await this.send({ method: 'GET', bucket, query }));
      return [...body.matchAll(/<Key>([^<]*)<\/Key>/g)].map(([, key = '']) =>
        decodeURIComponent(key.replaceAll('+', '%20')),
      );
    });
  }

  /** Closes idle connections. */
  close(): void {
    if (this.agent) this.agent.destroy();
  }

  private async finish(request: Request): Promise<void> {
    await text(await this.send(request));
  }

  private async send(request: Request): Promise<http.IncomingMessage> {
    const { method, bucket, key, query = {}, body, signal } = request;
    const idle = request.idleMilliseconds ?? this.settings.idleMilliseconds ?? idleMilliseconds;
    const base = this.endpoint.pathname.replace(/\/$/, '');
    const path = [base, ...[bucket, ...(key === undefined ? [] : key.split('/'))].map(encode)].join('/');
    const signed = await (
      await this.sign()
    ).sign({
      method,
      protocol: this.endpoint.protocol,
      hostname: this.endpoint.hostname,
      path,
      query: { ...query },
      headers: {
        host: this.endpoint.host,
        'x-amz-content-sha256': createHash('sha256')
          .update(body ?? '')
          .digest('hex'),
        ...(body && { 'content-length': String(body.length) }),
        ...request.headers,
      },
    });
    const search = Object.entries(query).map(([name, value]) => `${encode(name)}=${encode(value)}`);
    const url = new URL(this.endpoint);
    url.pathname = path;
    return traceRequestTo({ method, url, template: '/{bucket}/{key}' }, async (onStatus) => {
      const response = await this.exchange(
        {
          ...{ method, path: search.length > 0 ? `${path}?${search.join('&')}` : path },
          ...{ headers: signed.headers, signal, timeout: idle },
        },
        body,
      );
      const status = response.statusCode ?? 0;
      onStatus(status);
      if (status >= 200 && status < 300) return response;
      throw new S3Error(status, await errorCode(response, idle));
    });
  }

  private exchange(
    options: Pick<http.RequestOptions, 'method' | 'path' | 'headers' | 'signal'> & { readonly timeout: number },
    body: Buffer | undefined,
  ): Promise<http.IncomingMessage> {
    return new Promise((resolve, reject) => {
      const { protocol, hostname, port } = this.endpoint;
      const sent = (protocol === 'https:' ? https : http).request({
        ...options,
        // Brackets of an IPv6 address are part of the URL alone.
        hostname: hostname.replace(/^\[|\]$/g, ''),
        port,
        ...(this.connection ? this.connection(options.signal) : { agent: this.agent }),
      });
      let received: http.IncomingMessage | undefined;
      const stall = (): void => {
        const error = new S3StallError();
        // Its reader would see a connection that was reset.
        received?.destroy(error);
        sent.destroy(error);
        // A request without a socket reports its error only once it would get one.
        reject(error);
      };
      sent.once('timeout', stall);
      // A request that waits for one of the connections has no socket yet that could time out.
      const timer = body ? undefined : setTimeout(stall, options.timeout);
      sent.once('response', (response) => {
        clearTimeout(timer);
        resolve((received = response));
      });
      // Errors after the response arrive at the response too.
      sent.on('error', (error) => {
        clearTimeout(timer);
        reject(error);
      });
      sent.end(body);
    });
  }

  private sign(): Promise<SignatureV4> {
    const { region, accessKey, secretKey, sessionToken } = this.settings;
    // Loaded on first use: most installations need no S3.
    this.signer ??= import('@smithy/signature-v4').then(
      ({ SignatureV4: Signer }) =>
        new Signer({
          service: 's3',
          region,
          credentials: {
            accessKeyId: accessKey,
            secretAccessKey: secretKey,
            ...(sessionToken !== undefined && { sessionToken }),
          },
          sha256: Sha256,
          uriEscapePath: false,
        }),
    );
    return this.signer;
  }
}

/** Encodes a segment of a path or a part of a query as the signature requires it. */
const encode = (segment: string): string =>
  encodeURIComponent(segment).replace(/[!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`);

/** Reads the code of an error response, of a service that may be a tenant's: for so long, however slowly the bytes come. */
async function errorCode(response: http.IncomingMessage, milliseconds: number): Promise<string> {
  let body = '';
  const timer = setTimeout(() => response.destroy(), milliseconds);
  try {
    for await (const piece of response as AsyncIterable<Buffer>) {
      body += piece.toString('latin1');
      if (body.length > maximumErrorBytes) break;
    }
  } catch {
    // The status says enough.
  }
  clearTimeout(timer);
  response.destroy();
  return /<Code>([A-Za-z0-9.]{1,64})<\/Code>/.exec(body)?.[1] ?? '';
}

/** Reports whether the same request may succeed later: connections that break, and the service's own failures. */
const isPassing = (error: unknown): boolean =>
  !(error instanceof S3Error) || error.status >= 500 || error.status === 429;

async function retrying<T>(work: () => Promise<T>): Promise<T> {
  let stalled = 0;
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work();
    } catch (error) {
      if (error instanceof S3StallError) stalled += 1;
      if (attempt === attempts || stalled === stalledAttempts || !isPassing(error)) throw error;
      await sleep(retryMilliseconds * 2 ** (attempt - 1) * (1 + Math.random()));
    }
  }
}
