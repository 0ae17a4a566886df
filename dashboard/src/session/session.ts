// The session of the signed-in user. The access token is held in memory; the refresh token also in the tab's session storage, so that the
// sign-in survives a reload and ends with the tab.
import { KelletClient, type Schema, SessionCredentials, type Tokens } from '@kellet/client';
import { isSignInNeeded } from '../failure.ts';

/** What a session keeps between reloads of its tab. */
export interface StoredSession {
  readonly refreshToken: string;
  /** The e-mail address that was typed, for display; empty after single sign-on. */
  readonly email: string;
}

/** The part of Storage that sessions use. */
export type SessionStorage = Pick<Storage, 'getItem' | 'setItem' | 'removeItem'>;

/** The part of BroadcastChannel that sessions use. */
export interface SessionChannel {
  postMessage(message: unknown): void;
  addEventListener(type: 'message', listener: (event: { data: unknown }) => void): void;
  close(): void;
}

/** The surroundings of sessions. */
export interface SessionParts {
  /** Base URL of the API. */
  readonly api: string;
  readonly storage: SessionStorage;
  /** Opens the channel to other tabs of this origin. */
  readonly openChannel: () => SessionChannel;
  readonly now: () => number;
  readonly fetch?: (request: Request) => Promise<Response>;
}

/** Why a session has ended. */
export type EndReason = 'signed out' | 'expired';

const storageKey = 'kellet.session';

/** Few retries: an error is shown soon. */
const retry = { maximumAttempts: 3, maximumWaitSeconds: 5 };

/** Returns what an earlier load of this tab stored, or undefined. */
export function storedSession(storage: SessionStorage): StoredSession | undefined {
  try {
    const stored: unknown = JSON.parse(storage.getItem(storageKey) ?? 'null');
    if (typeof stored !== 'object' || stored === null) return undefined;
    const { refreshToken, email } = stored as Partial<StoredSession>;
    if (typeof refreshToken !== 'string' || refreshToken === '') return undefined;
    return { refreshToken, email: typeof email === 'string' ? email : '' };
  } catch {
    return undefined;
  }
}

/** Returns a client for the calls before a sign-in. */
export function openClient({ api, fetch }: Pick<SessionParts, 'api' | 'fetch'>): KelletClient {
  return new KelletClient({ baseUrl: api, retry, ...(fetch && { fetch }) });
}

/** A message to other tabs: the tokens that replace those of a refresh token. */
interface Replacement {
  readonly replaced: string;
  readonly tokens: Tokens;
}

/** A signed-in user. */
export class Session {
  readonly client: KelletClient;
  readonly email: string;
  /** The caller behind the token, as `auth/validate` describes it. */
  caller: Schema<'ValidateTokenResponse'> | undefined;
  /** Called once, when the session has ended. */
  onEnd: (reason: EndReason) => void = () => undefined;
  private readonly parts: SessionParts;
  private readonly open: KelletClient;
  private readonly credentials: TabCredentials;
  private readonly channel: SessionChannel;
  private isEnded = false;

  constructor(parts: SessionParts, tokens: Tokens, email: string) {
    this.parts = parts;
    this.email = email;
    this.open = openClient(parts);
    this.channel = parts.openChannel();
    this.credentials = new TabCredentials(tokens, (refreshToken) => this.exchange(refreshToken), parts.now);
    this.client = new KelletClient({
      baseUrl: parts.api,
      retry,
      credential: this.credentials,
      ...(parts.fetch && { fetch: parts.fetch }),
    });
    // A duplicated tab has the same refresh token. Each token works once, and using it again ends the session, so the tab
    // that exchanges it sends the new one to the others.
    this.channel.addEventListener('message', ({ data }) => {
      const { replaced, tokens: successor } = data as Replacement;
      if (!this.isEnded && replaced === this.credentials.refreshToken) this.adopt(successor);
    });
    this.store(tokens.refresh_token);
  }

  /** Resumes the session that this tab had before it was reloaded. Throws an ApiError if it has ended. */
  static async resume(parts: SessionParts, { refreshToken, email }: StoredSession): Promise<Session> {
    const tokens = await openClient(parts).post('/api/v1/auth/refresh', { body: { refresh_token: refreshToken } });
    const session = new Session(parts, tokens, email);
    session.channel.postMessage({ replaced: refreshToken, tokens } satisfies Replacement);
    return session;
  }

  /** Whether the caller holds a scope for all devices. */
  holds(scope: string): boolean {
    return this.caller?.scopes.includes(scope) ?? false;
  }

  /** Returns the current access token, for `/ws`. */
  accessToken(): Promise<string> {
    return this.credentials.bearer();
  }

  /** Reads who is signed in. */
  async identify(): Promise<void> {
    const token = await this.accessToken();
    this.caller = await this.client.post('/api/v1/auth/validate', { body: { token } });
  }

  /**
   * Signs out here and at the server. Returns the URL at which to sign out at the provider for single sign-on as well, empty
   * if there is none.
   */
  async signOut(): Promise<string> {
    try {
      // The platform's administrators do not sign in at providers.
      if (!this.caller?.tenant_id) {
        await this.client.post('/api/v1/auth/logout');
        return '';
      }
      return (await this.client.post('/api/v1/auth/sso/logout', { body: {} })).logout_url;
    } finally {
      this.end('signed out');
    }
  }

  /** Forgets the tokens. */
  end(reason: EndReason): void {
    if (this.isEnded) return;
    this.isEnded = true;
    this.parts.storage.removeItem(storageKey);
    this.channel.close();
    this.onEnd(reason);
  }

  private async exchange(refreshToken: string): Promise<Tokens> {
    try {
      const tokens = await this.open.post('/api/v1/auth/refresh', { body: { refresh_token: refreshToken } });
      this.store(tokens.refresh_token);
      this.channel.postMessage({ replaced: refreshToken, tokens } satisfies Replacement);
      return tokens;
    } catch (error) {
      if (isSignInNeeded(error)) this.end('expired');
      throw error;
    }
  }

  private adopt(tokens: Tokens): void {
    this.credentials.replace(tokens);
    this.store(tokens.refresh_token);
  }

  private store(refreshToken: string): void {
    if (this.isEnded) return;
    const stored: StoredSession = { refreshToken, email: this.email };
    this.parts.storage.setItem(storageKey, JSON.stringify(stored));
  }
}

/** The client's credentials, which another tab can replace. */
class TabCredentials {
  private readonly exchange: (refreshToken: string) => Promise<Tokens>;
  private readonly now: () => number;
  private held: SessionCredentials;

  constructor(tokens: Tokens, exchange: (refreshToken: string) => Promise<Tokens>, now: () => number) {
    this.exchange = exchange;
    this.now = now;
    this.held = new SessionCredentials(tokens, exchange, now);
  }

  get refreshToken(): string {
    return this.held.current.refresh_token;
  }

  replace(tokens: Tokens): void {
    this.held = new SessionCredentials(tokens, this.exchange, this.now);
  }

  bearer(): Promise<string> {
    return this.held.bearer();
  }

  renew(bearer: string): Promise<string | undefined> {
    return this.held.renew(bearer);
  }
}
