// REST: telemetry by POST, commands by long poll. Runs in browsers; Node brings its own way of sending requests.
import { DeviceError, httpError, unavailable } from '../errors.ts';
import type {
  AssignedPackage,
  Attributes,
  Child,
  Claim,
  Command,
  Identity,
  Ingested,
  JsonObject,
  OtaReport,
  Point,
  Response,
} from '../messages.ts';
import { callMilliseconds, type Listener, type Protocol, type Transport } from './transport.ts';

/** An HTTP request. */
export interface HttpRequest {
  method: 'GET' | 'POST' | 'PATCH';
  url: string;
  headers: Record<string, string>;
  body?: string | undefined;
  signal: AbortSignal;
}

/** An HTTP response, of any status. */
export interface HttpResponse {
  status: number;
  /** Returns a header by its name in lower case. */
  header(name: string): string | undefined;
  body: Uint8Array;
}

/** Sends a request. Throws if there is no complete response. */
export type SendHttp = (request: HttpRequest) => Promise<HttpResponse>;

/** Sends a request with the platform's `fetch`. */
export const sendByFetch: SendHttp = async ({ url, method, headers, body, signal }) => {
  const response = await fetch(url, { method, headers, signal, ...(body === undefined ? {} : { body }) });
  return {
    status: response.status,
    header: (name) => response.headers.get(name) ?? undefined,
    body: new Uint8Array(await response.arrayBuffer()),
  };
};

/** How long a poll waits for a command. */
const pollSeconds = 45;

const decoder = new TextDecoder();
const json = (bytes: Uint8Array): unknown => {
  if (bytes.length === 0) return undefined;
  try {
    return JSON.parse(decoder.decode(bytes));
  } catch {
    return undefined;
  }
};

/**
 * Returns a signal that also aborts after a time, until it is released. Signals of `AbortSignal.any` and `AbortSignal.timeout` live
 * until their time has come, and then all abort, which costs more than the rest of a quick request.
 */
function limit(signal: AbortSignal, milliseconds: number): { signal: AbortSignal; release: () => void } {
  const controller = new AbortController();
  const abort = (): void => controller.abort(signal.reason);
  if (signal.aborted) abort();
  const timer = setTimeout(() => controller.abort(new Error('timed out')), milliseconds);
  signal.addEventListener('abort', abort);
  const release = (): void => {
    clearTimeout(timer);
    signal.removeEventListener('abort', abort);
  };
  return { signal: controller.signal, release };
}

interface Call {
  query?: Record<string, string | number>;
  body?: unknown;
  headers?: Record<string, string>;
  milliseconds?: number;
}

/** REST at a base URL such as `https://kellet.example`. */
export class RestProtocol implements Protocol {
  private readonly base: string;
  private readonly sendHttp: SendHttp;
  private readonly onClose: () => void;

  constructor(base: string, sendHttp: SendHttp = sendByFetch, onClose: () => void = () => undefined) {
    this.base = base.replace(/\/+$/, '');
    this.sendHttp = sendHttp;
    this.onClose = onClose;
  }

  async claim(claim: Claim, signal: AbortSignal): Promise<Identity> {
    const response = await this.call('POST', 'provision', undefined, { body: claim }, signal);
    const { device_id, api_key } = json(response.body) as Identity;
    return { device_id, api_key };
  }

  open(identity: Identity): Transport {
    return new RestTransport(this, identity);
  }

  close(): Promise<void> {
    this.onClose();
    return Promise.resolve();
  }

  /** Sends a request. Returns a successful response, and throws a DeviceError otherwise. */
  async call(
    method: HttpRequest['method'],
    path: string,
    key: string | undefined,
    call: Call,
    signal: AbortSignal,
  ): Promise<HttpResponse> {
    const query = Object.entries(call.query ?? {}).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
    const limited = limit(signal, call.milliseconds ?? callMilliseconds);
    let response;
    try {
      response = await this.sendHttp({
        method,
        url: `${this.base}/api/v1/${path}${query.length ? `?${query.join('&')}` : ''}`,
        headers: {
          ...(key !== undefined && { authorization: `Bearer ${key}` }),
          ...(call.body !== undefined && { 'content-type': 'application/json' }),
          ...call.headers,
        },
        body: call.body === undefined ? undefined : JSON.stringify(call.body),
        signal: limited.signal,
      });
    } catch (error) {
      signal.throwIfAborted();
      throw unavailable(`${method} ${path}: ${error instanceof Error ? error.message : 'no response'}`, error);
    } finally {
      limited.release();
    }
    if (response.status >= 200 && response.status < 300) return response;
    throw httpError(response.status, json(response.body), response.header('retry-after'));
  }
}

class RestTransport implements Transport {
  private readonly protocol: RestProtocol;
  private readonly identity: Identity;

  constructor(protocol: RestProtocol, identity: Identity) {
    this.protocol = protocol;
    this.identity = identity;
  }

  async send(points: readonly Point[], requestKey: string, signal: AbortSignal): Promise<Ingested> {
    const { device_id } = this.identity;
    const body = { points: points.map((point) => ({ device_id, ...point })) };
    return this.json<Ingested>('POST', 'telemetry', { body, headers: { 'idempotency-key': requestKey } }, signal);
  }

  async listen(listener: Listener, signal: AbortSignal): Promise<void> {
    const path = `${this.own}/rpc/pending`;
    // The first poll does not wait, so that the device learns at once whether it is connected.
    for (let seconds = 0; !signal.aborted; seconds = pollSeconds) {
      const call = { query: { wait_seconds: seconds }, milliseconds: seconds * 1000 + callMilliseconds };
      const { commands } = await this.json<{ commands: Command[] }>('GET', path, call, signal);
      if (seconds === 0) listener.onReady();
      for (const command of commands) listener.onCommand(command);
    }
  }

  async respond(correlationId: string, response: Response, signal: AbortSignal): Promise<void> {
    const path = `devices/rpc/${encodeURIComponent(correlationId)}/response`;
    await this.json('POST', path, { body: response }, signal);
  }

  getAttributes(signal: AbortSignal): Promise<Attributes> {
    return this.json<Attributes>('GET', `${this.own}/attributes`, {}, signal);
  }

  async setAttributes(changes: JsonObject, signal: AbortSignal): Promise<void> {
    await this.json('PATCH', `${this.own}/attributes`, { body: { client: changes } }, signal);
  }

  async assignedPackage(signal: AbortSignal): Promise<AssignedPackage | undefined> {
    try {
      return await this.json<AssignedPackage>('GET', `${this.own}/ota`, {}, signal);
    } catch (error) {
      if (error instanceof DeviceError && error.code === 'NOT_FOUND') return undefined;
      throw error;
    }
  }

  async chunk(packageId: string, offset: number, length: number, signal: AbortSignal): Promise<Uint8Array> {
    const call = {
      query: { package_id: packageId, offset, length },
      headers: { accept: 'application/octet-stream' },
    };
    const { body } = await this.protocol.call('GET', `${this.own}/ota/chunk`, this.identity.api_key, call, signal);
    return body;
  }

  async report(report: OtaReport, signal: AbortSignal): Promise<void> {
    const body = { device_id: this.identity.device_id, ...report };
    await this.json('POST', `${this.own}/ota/report`, { body }, signal);
  }

  async connectChild(child: Child, signal: AbortSignal): Promise<string> {
    const { device_id } = await this.json<{ device_id: string }>(
      'POST',
      `${this.gateway}/connect`,
      { body: child },
      signal,
    );
    return device_id;
  }

  async disconnectChild(deviceId: string, signal: AbortSignal): Promise<void> {
    await this.json('POST', `${this.gateway}/disconnect`, { body: { device_id: deviceId } }, signal);
  }

  child(deviceId: string): Transport {
    return new RestTransport(this.protocol, { device_id: deviceId, api_key: this.identity.api_key });
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  private get gateway(): string {
    return `gateway/${encodeURIComponent(this.identity.device_id)}`;
  }

  private get own(): string {
    return `devices/${encodeURIComponent(this.identity.device_id)}`;
  }

  private async json<Body>(
    method: HttpRequest['method'],
    path: string,
    call: Call,
    signal: AbortSignal,
  ): Promise<Body> {
    const response = await this.protocol.call(method, path, this.identity.api_key, call, signal);
    return json(response.body) as Body;
  }
}
