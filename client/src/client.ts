// The REST API as typed calls: `client.post('/api/v1/profiles', { body })` returns the profile or throws an ApiError.
import createFetchClient, { type FetchResponse, type MaybeOptionalInit } from 'openapi-fetch';
import type { HttpMethod, MediaType, PathsWithMethod, RequiredKeysOf } from 'openapi-typescript-helpers';
import { type Credentials, fixedCredential, SessionCredentials, type Tokens } from './credentials.ts';
import { apiError } from './errors.ts';
import type { paths } from './generated/api.ts';
import { LiveConnection, LiveError } from './live.ts';
import { defaultRetryPolicy, retryDelay, type RetryPolicy } from './retry.ts';

/** Options of a client. */
export interface ClientOptions {
  /** Base URL of the REST API, such as `https://kellet.example`. */
  baseUrl: string;
  /** An API key or access token; not needed for public routes. `signIn` sets one. */
  credential?: string | Credentials;
  retry?: Partial<RetryPolicy>;
  /** For tests: replace sending and waiting. */
  fetch?: (request: Request) => Promise<Response>;
  sleep?: (seconds: number) => Promise<void>;
}

/** The result of a call: the body of its success response. */
type Reply<Path extends keyof paths, Method extends HttpMethod> = Method extends keyof paths[Path]
  ? NonNullable<FetchResponse<paths[Path][Method] & Record<string, unknown>, unknown, MediaType>['data']>
  : never;

/** The second argument, optional if it has no required properties. */
type InitParam<Init> = RequiredKeysOf<Init> extends never ? [Init?] : [Init];

// The second argument has no type parameter: it would be inferred as written, including misspelt fields.
type Call<Method extends HttpMethod> = <Path extends PathsWithMethod<paths, Method>>(
  path: Path,
  ...init: InitParam<MaybeOptionalInit<paths[Path], Method>>
) => Promise<Reply<Path, Method>>;

/** Paths of lists paged with `page_token`, and the list fields of a response. */
type ListPath = {
  [Path in PathsWithMethod<paths, 'get'>]: Reply<Path, 'get'> extends { next_page_token: string } ? Path : never;
}[PathsWithMethod<paths, 'get'>];
type ListField<Body> = { [Key in keyof Body]: Body[Key] extends readonly unknown[] ? Key : never }[keyof Body];
type Item<List> = List extends readonly (infer One)[] ? One : never;

const sleepSeconds = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, seconds * 1000));

/** The API with one credential. Every call returns the body of its success response or throws an ApiError. */
export class KelletClient {
  readonly get: Call<'get'>;
  readonly post: Call<'post'>;
  readonly put: Call<'put'>;
  readonly patch: Call<'patch'>;
  readonly delete: Call<'delete'>;
  private readonly options: ClientOptions;
  private readonly policy: RetryPolicy;
  private credentials: Credentials;

  constructor(options: ClientOptions) {
    this.options = options;
    this.policy = { ...defaultRetryPolicy, ...options.retry };
    const { credential } = options;
    this.credentials =
      typeof credential === 'object' ? credential : fixedCredential(credential === '' ? undefined : credential);
    const client = createFetchClient<paths>({
      baseUrl: options.baseUrl,
      fetch: (request) => this.send(request),
      // Lists in the query are repeated parameters.
      querySerializer: { array: { style: 'form', explode: true } },
    });
    const unwrapped = (call: (...args: never[]) => Promise<{ data?: unknown }>) =>
      (async (...args: never[]) => (await call(...args)).data) as never;
    this.get = unwrapped(client.GET);
    this.post = unwrapped(client.POST);
    this.put = unwrapped(client.PUT);
    this.patch = unwrapped(client.PATCH);
    this.delete = unwrapped(client.DELETE);
  }

  /**
   * Signs in. The client then calls as that user, refreshing tokens automatically. `secondFactor` is called for a user
   * with a second factor, with the methods to choose from, and returns a code of the authenticator app or a recovery
   * code; without it, such a sign-in throws.
   */
  static async signIn(
    options: Omit<ClientOptions, 'credential'>,
    account: { email: string; password: string; tenant_id?: string },
    secondFactor?: (methods: readonly string[]) => string | Promise<string>,
  ): Promise<KelletClient> {
    const open = new KelletClient(options);
    const { email, password, tenant_id } = account;
    const first = await open.post('/api/v1/auth/login', { body: { email, password, tenant_id } });
    if (first.mfa_token === '') return KelletClient.resume(options, first);
    if (!secondFactor) throw new Error('the sign-in needs a second factor: pass a function that returns its code');
    const { mfa_token, mfa_methods } = first;
    const code = await secondFactor(mfa_methods);
    return KelletClient.resume(options, await open.post('/api/v1/auth/mfa/verify', { body: { mfa_token, code } }));
  }

  /** Resumes with the tokens of an earlier sign-in. */
  static resume(options: Omit<ClientOptions, 'credential'>, tokens: Tokens): KelletClient {
    const open = new KelletClient(options);
    const credential = new SessionCredentials(tokens, (refreshToken) =>
      open.post('/api/v1/auth/refresh', { body: { refresh_token: refreshToken } }),
    );
    return new KelletClient({ ...options, credential });
  }

  /** Returns the bearer token of the next request, or undefined. */
  bearer(): Promise<string | undefined> {
    return this.credentials.bearer();
  }

  /**
   * Opens a connection to the live feed (`/ws`). It ends when the access token expires, with a LiveError of code 4401:
   * then open a new one.
   */
  async live(): Promise<LiveConnection> {
    const token = await this.credentials.bearer();
    if (token === undefined) throw new LiveError('UNAUTHENTICATED', 'the live feed needs an access token');
    return LiveConnection.open(this.options.baseUrl, token);
  }

  /**
   * Yields every item of a list, page by page: `for await (const device of client.list('/api/v1/devices', 'devices'))`.
   */
  async *list<Path extends ListPath, Field extends ListField<Reply<Path, 'get'>>>(
    path: Path,
    field: Field,
    init?: MaybeOptionalInit<paths[Path], 'get'>,
  ): AsyncGenerator<Item<Reply<Path, 'get'>[Field]>> {
    const given = (init ?? {}) as { params?: { query?: Record<string, unknown> } };
    const get = this.get as (path: string, init: unknown) => Promise<Record<string, unknown>>;
    for (let token = ''; ;) {
      const query = { ...given.params?.query, ...(token === '' ? {} : { page_token: token }) };
      const page = await get(path, { ...given, params: { ...given.params, query } });
      yield* page[field as string] as Item<Reply<Path, 'get'>[Field]>[];
      token = page['next_page_token'] as string;
      if (token === '') return;
    }
  }

  /** Sends a request with its credential, which is renewed once if rejected, and retries as the policy allows. */
  private async send(request: Request): Promise<Response> {
    const { fetch: sendOnce = fetch, sleep = sleepSeconds } = this.options;
    let bearer = await this.credentials.bearer();
    let isRenewed = false;
    for (let attempt = 1; ; attempt += 1) {
      const copy = request.clone();
      if (bearer !== undefined) copy.headers.set('authorization', `Bearer ${bearer}`);
      const response = await sendOnce(copy);
      if (response.ok) return response;
      if (response.status === 401 && bearer !== undefined && !isRenewed) {
        isRenewed = true;
        const renewed = await this.credentials.renew(bearer);
        if (renewed !== undefined) {
          bearer = renewed;
          await response.body?.cancel();
          continue;
        }
      }
      const delay = retryDelay(request, response, attempt, this.policy, Math.random());
      if (delay === undefined) throw await apiError(request, response);
      await response.body?.cancel();
      await sleep(delay);
    }
  }
}
