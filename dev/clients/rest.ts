// REST client for tests: sends valid and invalid requests and returns raw responses. Valid requests use @kellet/client.
import { setTimeout as sleep } from 'node:timers/promises';
import { KelletClient } from '@kellet/client';

/** A response with any status. */
export interface RestResponse<Body = unknown> {
  status: number;
  headers: Headers;
  /** The parsed JSON, or the text if it is not JSON. */
  body: Body;
}

/** Parts of a request besides method and path. */
export interface RestRequest {
  /** Sent as JSON; a string is sent unchanged. */
  body?: unknown;
  /** Repeated names become repeated parameters. */
  query?: Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;
  headers?: Readonly<Record<string, string>>;
  signal?: AbortSignal;
}

/** An error response. */
export class RestError extends Error {
  readonly status: number;
  /** Error code in the body, or "429" for a rate limit rejection. */
  readonly code: string;
  readonly headers: Headers;

  constructor(what: string, response: RestResponse) {
    const body = (typeof response.body === 'object' ? response.body : {}) as {
      code?: string | number;
      message?: unknown;
    };
    const text = typeof body.message === 'string' ? body.message : JSON.stringify(response.body);
    super(`${what}: ${response.status} ${text}`);
    this.status = response.status;
    this.code = String(body.code ?? '');
    this.headers = response.headers;
  }
}

/** Calls the API with a credential or without. */
export class Rest {
  readonly base: string;
  /** The typed client with the same credential. It does not retry, so that tests see every error. */
  readonly client: KelletClient;
  private readonly credential: string | undefined;

  /** `base` is the API's base URL without a trailing slash; `token` is an access token or API key. */
  constructor(base: string, token?: string) {
    this.base = base;
    this.client = new KelletClient({
      baseUrl: base,
      retry: { maximumAttempts: 1 },
      ...(token === undefined ? {} : { credential: token }),
    });
    this.credential = token;
  }

  /** Signs in. Returns a client with the user's access token. */
  static async login(base: string, user: { email: string; password: string }): Promise<Rest> {
    const { email, password } = user;
    const { access_token } = await new Rest(base).client.post('/api/v1/auth/login', { body: { email, password } });
    return new Rest(base, access_token);
  }

  /** The credential in use. */
  get token(): string {
    return this.credential ?? '';
  }

  /** Sends a request and returns the response, whatever its status. Throws only if there is none. */
  async send<Body = unknown>(method: string, path: string, request: RestRequest = {}): Promise<RestResponse<Body>> {
    const { body, query, headers, signal } = request;
    const url = new URL(this.base + path);
    for (const [name, value] of Object.entries(query ?? {})) {
      if (value === undefined) continue;
      for (const item of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(item));
    }
    const response = await fetch(url, {
      method,
      headers: {
        ...(this.credential ? { authorization: `Bearer ${this.credential}` } : {}),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
    return { status: response.status, headers: response.headers, body: parsed(await response.text()) as Body };
  }

  /** Sends a request and returns the body. Throws RestError unless the status is 2xx. */
  async call<Body = unknown>(method: string, path: string, request: RestRequest = {}): Promise<Body> {
    const response = await this.send<Body>(method, path, request);
    if (response.status < 200 || response.status > 299) throw new RestError(`${method} ${path}`, response);
    return response.body;
  }

  /** Throws RestError unless the status is 2xx. */
  get<Body = unknown>(path: string, query?: RestRequest['query'], signal?: AbortSignal): Promise<Body> {
    return this.call('GET', path, { ...(query ? { query } : {}), ...(signal ? { signal } : {}) });
  }

  /** Throws RestError unless the status is 2xx. */
  post<Body = unknown>(path: string, body: unknown = {}, signal?: AbortSignal): Promise<Body> {
    return this.call('POST', path, { body, ...(signal ? { signal } : {}) });
  }

  /** Throws RestError unless the status is 2xx. */
  patch<Body = unknown>(path: string, body: unknown): Promise<Body> {
    return this.call('PATCH', path, { body });
  }

  /** Throws RestError unless the status is 2xx. */
  delete(path: string): Promise<unknown> {
    return this.call('DELETE', path);
  }

  /** Returns all items of a paged list. */
  async list<Item>(path: string, field: string, query: RestRequest['query'] = {}): Promise<Item[]> {
    const items: Item[] = [];
    for (let token = ''; ;) {
      const page = await this.get<Record<string, unknown> & { next_page_token?: string }>(path, {
        ...query,
        ...(token ? { page_token: token } : {}),
      });
      items.push(...(page[field] as Item[]));
      token = page.next_page_token ?? '';
      if (!token) return items;
    }
  }
}

/** Longest time for which a call is repeated, and the pause between two attempts, in milliseconds. */
const patience = { longest: 120_000, between: 500 };

/** Repeats a call while the platform is unavailable or limits the rate, as a client should: on a busy machine it may be for a moment. */
async function untilAvailable<Result>(call: () => Promise<Result>): Promise<Result> {
  for (const begun = performance.now(); ;) {
    let wait = patience.between;
    try {
      return await call();
    } catch (error) {
      const isLimited = error instanceof RestError && error.code === '429';
      const isFinal = error instanceof RestError && error.status !== 503 && !isLimited;
      if (isFinal || performance.now() - begun > patience.longest) throw error;
      if (isLimited) wait = Number(error.headers.get('retry-after') ?? '0') * 1000 || wait;
    }
    await sleep(wait);
  }
}

/** Calls the API, and repeats each call while the platform is unavailable or limits the rate. */
export class PatientRest extends Rest {
  override call<Body = unknown>(method: string, path: string, request: RestRequest = {}): Promise<Body> {
    return untilAvailable(() => super.call<Body>(method, path, request));
  }
}

/** Returns parsed JSON, or the text if it is not JSON. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
