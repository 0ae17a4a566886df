// The REST API as typed calls: `client.post('/api/v1/profiles', { body })` answers the profile or throws an ApiError.
import createFetchClient, { type FetchResponse, type MaybeOptionalInit } from 'openapi-fetch';
import type { HttpMethod, MediaType, PathsWithMethod, RequiredKeysOf } from 'openapi-typescript-helpers';
import { fixedCredential, SessionCredentials, type Credentials, type Tokens } from './credentials.ts';
import { apiError } from './errors.ts';
import type { paths } from './generated/api.ts';
import { defaultRetryPolicy, retryDelay, type RetryPolicy } from './retry.ts';

/** How a client is made. */
export interface ClientOptions {
  /** Of the REST API, such as `https://kellet.example`. */
  baseUrl: string;
  /** An API key or an access token; nothing for the open routes. `signIn` sets one. */
  credential?: string | Credentials;
  retry?: Partial<RetryPolicy>;
  /** For tests: what sends, and what waits. */
  fetch?: (request: Request) => Promise<Response>;
  sleep?: (seconds: number) => Promise<void>;
}

/** What a call answers: the body of its success. */
type Answer<Path extends keyof paths, Method extends HttpMethod> = Method extends keyof paths[Path]
  ? NonNullable<FetchResponse<paths[Path][Method] & Record<string, unknown>, unknown, MediaType>['data']>
  : never;

/** The second argument, which may be left out when nothing in it is required. */
type InitParam<Init> = RequiredKeysOf<Init> extends never ? [Init?] : [Init];

// No type parameter stands for the second argument: it would be inferred as it was written, misspelt fields and all.
type Call<Method extends HttpMethod> = <Path extends PathsWithMethod<paths, Method>>(
  path: Path,
  ...init: InitParam<MaybeOptionalInit<paths[Path], Method>>
) => Promise<Answer<Path, Method>>;

/** Paths of lists that page by `page_token`, and the fields of an answer that are lists. */
type ListPath = {
  [Path in PathsWithMethod<paths, 'get'>]: Answer<Path, 'get'> extends { next_page_token: string } ? Path : never;
}[PathsWithMethod<paths, 'get'>];
type ListField<Body> = { [Key in keyof Body]: Body[Key] extends readonly unknown[] ? Key : never }[keyof Body];
type Item<List> = List extends readonly (infer One)[] ? One : never;

const sleepSeconds = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, seconds * 1000));

/** The API under one credential. Every call answers the body of its success, or throws an ApiError. */
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

  /** Signs in, and from then on calls as that person, with tokens that are refreshed by themselves. */
  static async signIn(
    options: Omit<ClientOptions, 'credential'>,
    account: { email: string; password: string; tenant_id?: string },
  ): Promise<KelletClient> {
    const open = new KelletClient(options);
    const { email, password, tenant_id } = account;
    const tokens = await open.post('/api/v1/auth/login', { body: { email, password, tenant_id } });
    return KelletClient.resume(options, tokens);
  }

  /** Goes on with tokens of an earlier sign-in. */
  static resume(options: Omit<ClientOptions, 'credential'>, tokens: Tokens): KelletClient {
    const open = new KelletClient(options);
    const credential = new SessionCredentials(tokens, (refreshToken) =>
      open.post('/api/v1/auth/refresh', { body: { refresh_token: refreshToken } }),
    );
    return new KelletClient({ ...options, credential });
  }

  /** The bearer that the next request would send; undefined: none. */
  bearer(): Promise<string | undefined> {
    return this.credentials.bearer();
  }

  /** Every item of a list, page by page: `for await (const device of client.list('/api/v1/devices', 'devices'))`. */
  async *list<Path extends ListPath, Field extends ListField<Answer<Path, 'get'>>>(
    path: Path,
    field: Field,
    init?: MaybeOptionalInit<paths[Path], 'get'>,
  ): AsyncGenerator<Item<Answer<Path, 'get'>[Field]>> {
    const given = (init ?? {}) as { params?: { query?: Record<string, unknown> } };
    const get = this.get as (path: string, init: unknown) => Promise<Record<string, unknown>>;
    for (let token = ''; ;) {
      const query = { ...given.params?.query, ...(token === '' ? {} : { page_token: token }) };
      const page = await get(path, { ...given, params: { ...given.params, query } });
      yield* page[field as string] as Item<Answer<Path, 'get'>[Field]>[];
      token = page['next_page_token'] as string;
      if (token === '') return;
    }
  }

  /** One request with its credential, renewed once when it is refused, and repeated while that makes sense. */
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
