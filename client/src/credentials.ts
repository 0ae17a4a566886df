// Credentials: a fixed API key, or a user's pair of tokens, refreshed before it expires.

/** A pair of tokens, as returned by a sign-in. */
export interface Tokens {
  access_token: string;
  refresh_token: string;
  /** Lifetime of the access token in seconds. */
  expires_in: number;
}

/** Provides the credential of requests. */
export interface Credentials {
  /** Returns the bearer token to send, or undefined for none. */
  bearer(): Promise<string | undefined>;
  /** Called when the API has rejected `bearer`. Returns another token, or undefined if there is none. */
  renew(bearer: string): Promise<string | undefined>;
}

/** Returns credentials for an API key (`sk_live_…`), or for an access token managed elsewhere. */
export const fixedCredential = (bearer: string | undefined): Credentials => ({
  bearer: () => Promise.resolve(bearer),
  renew: () => Promise.resolve(undefined),
});

/** Seconds before its expiry at which an access token is refreshed. */
const marginSeconds = 30;

/** A signed-in user. Concurrent requests share one refresh, since a refresh token works once. */
export class SessionCredentials implements Credentials {
  private readonly exchange: (refreshToken: string) => Promise<Tokens>;
  private readonly now: () => number;
  private tokens: Tokens;
  private endsAt: number;
  private refreshing: Promise<void> | undefined;

  /** `exchange` calls `POST /api/v1/auth/refresh`; `now` returns milliseconds. */
  constructor(tokens: Tokens, exchange: (refreshToken: string) => Promise<Tokens>, now: () => number = Date.now) {
    this.exchange = exchange;
    this.now = now;
    this.tokens = tokens;
    this.endsAt = now() + tokens.expires_in * 1000;
  }

  /** The current pair, to be stored for the next start. */
  get current(): Tokens {
    return this.tokens;
  }

  async bearer(): Promise<string> {
    if (this.now() >= this.endsAt - marginSeconds * 1000) await this.refresh();
    return this.tokens.access_token;
  }

  async renew(bearer: string): Promise<string | undefined> {
    // Another request may have refreshed in the meantime.
    if (bearer === this.tokens.access_token) await this.refresh();
    return this.tokens.access_token;
  }

  private refresh(): Promise<void> {
    return (this.refreshing ??= this.exchange(this.tokens.refresh_token)
      .then((tokens) => {
        this.tokens = tokens;
        this.endsAt = this.now() + tokens.expires_in * 1000;
      })
      .finally(() => (this.refreshing = undefined)));
  }
}
