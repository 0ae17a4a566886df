// Who calls: an API key as it is, or a person's pair of tokens, which is refreshed before it runs out.

/** A pair of tokens, as signing in answers it. */
export interface Tokens {
  access_token: string;
  refresh_token: string;
  /** Life of the access token in seconds. */
  expires_in: number;
}

/** Gives the credential of a request. */
export interface Credentials {
  /** What to send as the bearer; undefined: nothing. */
  bearer(): Promise<string | undefined>;
  /** The API has refused `bearer`: answers another one, or undefined when there is none. */
  renew(bearer: string): Promise<string | undefined>;
}

/** An API key (`sk_live_…`), or an access token that somebody else looks after. */
export const fixedCredential = (bearer: string | undefined): Credentials => ({
  bearer: () => Promise.resolve(bearer),
  renew: () => Promise.resolve(undefined),
});

/** Seconds before its end at which an access token counts as used up. */
const marginSeconds = 30;

/** A signed-in person. Several requests at once share one refresh, since a refresh token works once. */
export class SessionCredentials implements Credentials {
  private readonly exchange: (refreshToken: string) => Promise<Tokens>;
  private readonly now: () => number;
  private tokens: Tokens;
  private endsAt: number;
  private refreshing: Promise<void> | undefined;

  /** `exchange` calls `POST /api/v1/auth/refresh`; `now` answers milliseconds. */
  constructor(tokens: Tokens, exchange: (refreshToken: string) => Promise<Tokens>, now: () => number = Date.now) {
    this.exchange = exchange;
    this.now = now;
    this.tokens = tokens;
    this.endsAt = now() + tokens.expires_in * 1000;
  }

  /** The pair in use, to be kept for the next start. */
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
