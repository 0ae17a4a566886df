// The OpenID Connect protocol with one provider, as implemented by openid-client. Requests go through the outbound guard.
import {
  createRemoteJWKSet,
  customFetch as customKeyFetch,
  decodeJwt,
  errors,
  type JWTPayload,
  jwtVerify,
  type JWTVerifyGetKey,
} from 'jose';
import { LRUCache } from 'lru-cache';
import {
  allowInsecureRequests,
  authorizationCodeGrant,
  buildAuthorizationUrl,
  buildEndSessionUrl,
  calculatePKCECodeChallenge,
  ClientSecretBasic,
  ClientSecretPost,
  Configuration,
  type CustomFetch,
  customFetch,
  discovery,
  enableNonRepudiationChecks,
  fetchUserInfo,
  type ServerMetadata,
} from 'openid-client';
import { memoryOf } from '../../platform/memory-of.ts';
import { guardedFetch } from '../../platform/outbound/guarded-fetch.ts';
import type { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { isText } from './logout-claims.ts';
import { documentBytes, keptError, keptKeys, keptMetadata } from './provider-documents.ts';
import { joinedClaims, type PersonClaims } from './provider-fields.ts';

/** How long the discovered configuration of an issuer is used; its keys are read for each sign-in. */
const discoveryMilliseconds = 5 * 60_000;
const failureMilliseconds = 5_000;
/** Memory of all metadata, and of all keys. */
const cacheBytes = 8 * 2 ** 20;
/** An error of a discovery with its causes, and keys before they have been read. */
const errorBytes = 4000;
/** Maximum bytes of tokens, and of what a provider says about a person: usually a few KiB, more with hundreds of groups. */
const responseBytes = 128 * 1024;
const emptyKeysBytes = 2000;

/** A client at a provider. */
export interface ProviderClient {
  /** Whose it is, and on whose behalf the provider is asked. */
  readonly tenantId: string;
  readonly issuer: string;
  readonly clientId: string;
  readonly clientSecret: string;
}

/** The algorithms with which a provider may sign logout tokens: never one whose key a client has. */
const logoutAlgorithms = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];
/** Anyone can send logout tokens, so keys are not read for each: neither known ones nor those of an unknown id. */
const keysMilliseconds = 5 * 60_000;
const rereadMilliseconds = 10_000;

/** The secrets of one sign-in that only this service and the browser's cookie hold. */
export interface SignInSecrets {
  readonly state: string;
  readonly nonce: string;
  readonly codeVerifier: string;
}

/** What a provider says about a person. */
export interface StatedPerson {
  readonly idToken: string;
  /** The session at the provider, of the ID token (the claim sid); null if it names none. */
  readonly sid: string | null;
  readonly claims: PersonClaims & { amr?: unknown };
}

/** A client of OpenID Connect providers. */
export class OpenidProviders {
  private readonly guard: OutboundGuard;
  /**
   * Discovered metadata by tenant and issuer, or the error that prevented its discovery. Tenants share none: one may name as many
   * providers as it likes, and what it causes at one must not delay others there.
   */
  private readonly discovered = new LRUCache<string, ServerMetadata | Error>({
    maxSize: cacheBytes,
    sizeCalculation: (metadata) => 1000 + (metadata instanceof Error ? errorBytes : memoryOf(metadata)),
    ttl: discoveryMilliseconds,
  });
  private readonly running = new Map<string, Promise<ServerMetadata>>();
  /** Keys by tenant and URL. */
  private readonly keys = new LRUCache<string, JWTVerifyGetKey>({ maxSize: cacheBytes });

  constructor(guard: OutboundGuard) {
    this.guard = guard;
  }

  /** Returns a fetch on behalf of a tenant. Metadata and keys are small. */
  private fetchFor(tenantId: string, maximumBytes: number): CustomFetch {
    return (url, { method, headers, body }) => {
      const text = body === undefined || body === null ? undefined : bodyText(body);
      const sent = { method, headers, maximumBytes, owner: tenantId, ...(text === undefined ? {} : { body: text }) };
      return guardedFetch(this.guard, url, sent);
    };
  }

  /** Returns the URL at which a person signs in. Throws when the provider's configuration cannot be read or used. */
  async authorizationUrl(client: ProviderClient, redirectUri: string, secrets: SignInSecrets): Promise<URL> {
    const configuration = await this.configurationOf(client);
    const { scopes_supported: scopes = [] } = configuration.serverMetadata();
    const url = buildAuthorizationUrl(configuration, {
      redirect_uri: redirectUri,
      scope: ['openid', 'email', 'profile', ...(scopes.includes('groups') ? ['groups'] : [])].join(' '),
      state: secrets.state,
      nonce: secrets.nonce,
      code_challenge: await calculatePKCECodeChallenge(secrets.codeVerifier),
      code_challenge_method: 'S256',
    });
    return checkedProtocol(url, client);
  }

  /**
   * Returns the URL at which a browser ends the session of an ID token, or undefined if the provider has none
   * or another issuer has made the token. `redirectUri` may be empty. Throws as {@link authorizationUrl} does.
   */
  async endSessionUrl(
    client: ProviderClient,
    idToken: string,
    redirectUri: string,
    state: string,
  ): Promise<URL | undefined> {
    if (!isSameIssuer(decodeJwt(idToken).iss, client.issuer)) return undefined;
    const configuration = await this.configurationOf(client);
    if (configuration.serverMetadata().end_session_endpoint === undefined) return undefined;
    const url = buildEndSessionUrl(configuration, {
      ...{ id_token_hint: idToken, state },
      ...(redirectUri === '' ? {} : { post_logout_redirect_uri: redirectUri }),
    });
    return checkedProtocol(url, client);
  }

  /**
   * Returns the claims of a logout token that the provider has signed for this client lately; otherwise why it is refused, or
   * `away` if the provider's keys cannot be read.
   */
  async verifyLogoutToken(
    client: Omit<ProviderClient, 'clientSecret'>,
    token: string,
    age: { readonly seconds: number; readonly tolerance: number; readonly now: number },
  ): Promise<JWTPayload | string> {
    try {
      // Before any request: a token for others must not cause one.
      const { iss } = decodeJwt(token);
      if (!isSameIssuer(iss, client.issuer)) return 'another issuer has made it';
    } catch {
      return 'it cannot be read';
    }
    let keys: JWTVerifyGetKey;
    let issuer: string;
    try {
      const { jwks_uri: url, issuer: stated } = await this.metadataOf(client);
      if (url === undefined) return 'away';
      issuer = stated;
      keys = this.keysAt(client.tenantId, url);
    } catch {
      return 'away';
    }
    try {
      const { payload } = await jwtVerify(token, keys, {
        ...{ issuer, audience: client.clientId, algorithms: logoutAlgorithms },
        ...{ maxTokenAge: age.seconds, clockTolerance: age.tolerance, currentDate: new Date(age.now) },
      });
      return payload;
    } catch (error) {
      // For a status other than 200, or a response without keys, the library throws its base class.
      const isRefusal = error instanceof errors.JOSEError && error.constructor !== errors.JOSEError;
      return isRefusal && !(error instanceof errors.JWKSTimeout) ? error.code : 'away';
    }
  }

  private keysAt(tenantId: string, url: string): JWTVerifyGetKey {
    const place = placeOf(tenantId, url);
    const known = this.keys.get(place);
    if (known) return known;
    const made = createRemoteJWKSet(new URL(url), {
      ...{ cacheMaxAge: keysMilliseconds, cooldownDuration: rereadMilliseconds },
      [customKeyFetch]: async (text, { method, headers }) => {
        const sent = { method, headers: Object.fromEntries(headers), body: undefined, redirect: 'manual' } as const;
        return this.fetchKeys(tenantId, text, sent, (kept) => {
          if (this.keys.peek(place) !== made) return;
          this.keys.delete(place);
          this.keys.set(place, made, { size: emptyKeysBytes + memoryOf(kept) });
        });
      },
    });
    this.keys.set(place, made, { size: emptyKeysBytes });
    return made;
  }

  /** Returns what is used of a provider's keys, or its response if it is none. */
  private async fetchKeys(
    tenantId: string,
    url: string,
    options: Parameters<CustomFetch>[1],
    read: (kept: unknown) => void = () => undefined,
  ): Promise<Response> {
    const response = await this.fetchFor(tenantId, documentBytes)(url, options);
    if (response.status !== 200) return response;
    const kept = keptKeys(await response.json());
    read(kept);
    return Response.json(kept ?? {});
  }

  /**
   * Exchanges the code that the provider returned, and returns what the provider says about the person: the verified ID
   * token with its claims, and for those it lacks the ones of the userinfo endpoint. Throws for a response that does not
   * belong to this sign-in.
   */
  async person(client: ProviderClient, returned: URL, secrets: SignInSecrets): Promise<StatedPerson> {
    const configuration = await this.configurationOf(client);
    const tokens = await authorizationCodeGrant(configuration, returned, {
      expectedState: secrets.state,
      expectedNonce: secrets.nonce,
      pkceCodeVerifier: secrets.codeVerifier,
      idTokenExpected: true,
    });
    const claims = tokens.claims()!;
    const idToken = tokens.id_token!;
    const { userinfo_endpoint: userinfo } = configuration.serverMetadata();
    const isComplete = ['email', 'email_verified', 'groups'].every((name) => claims[name] !== undefined);
    const sid = isText(claims['sid']) ? claims['sid'] : null;
    if (userinfo === undefined || isComplete) return { idToken, sid, claims };
    const more = await fetchUserInfo(configuration, tokens.access_token, claims.sub);
    return { idToken, sid, claims: joinedClaims(claims, more) };
  }

  /**
   * Returns the configuration for one sign-in. Each has its own cache of the provider's keys, so that keys that have
   * just been rotated are known. They are read only after the provider has accepted a code.
   */
  private async configurationOf(client: ProviderClient): Promise<Configuration> {
    const metadata = await this.metadataOf(client);
    // The default is Basic (OpenID Connect Discovery 1.0, 3).
    const { token_endpoint_auth_methods_supported: methods = ['client_secret_basic'] } = metadata;
    const authentication = methods.includes('client_secret_basic') ? ClientSecretBasic : ClientSecretPost;
    const { tenantId, clientId, clientSecret } = client;
    const configuration = new Configuration(metadata, clientId, undefined, authentication(clientSecret));
    const keysUrl = metadata.jwks_uri === undefined ? undefined : URL.parse(metadata.jwks_uri)?.href;
    const fetch = this.fetchFor(tenantId, responseBytes);
    configuration[customFetch] = (url, options) =>
      url === keysUrl ? this.fetchKeys(tenantId, url, options) : fetch(url, options);
    // The guard has decided where plain http may be used.
    if (client.issuer.startsWith('http:')) allowInsecureRequests(configuration);
    // Verifies the signature of ID tokens too, although they come directly from the provider.
    enableNonRepudiationChecks(configuration);
    return configuration;
  }

  /**
   * Returns the metadata of an issuer. Anyone may begin a sign-in, so concurrent calls share one request, and a failure
   * is remembered for a while.
   */
  private async metadataOf(client: Omit<ProviderClient, 'clientSecret'>): Promise<ServerMetadata> {
    const { tenantId, issuer, clientId } = client;
    const place = placeOf(tenantId, issuer);
    const known = this.discovered.get(place);
    if (known instanceof Error) throw known;
    if (known) return known;
    let run = this.running.get(place);
    if (!run) {
      const execute = issuer.startsWith('http:') ? [allowInsecureRequests] : [];
      const options = { [customFetch]: this.fetchFor(tenantId, documentBytes), execute };
      run = discovery(new URL(issuer), clientId, undefined, undefined, options)
        .then((read) => keptMetadata(read.serverMetadata()))
        .finally(() => this.running.delete(place));
      this.running.set(place, run);
    }
    try {
      const metadata = await run;
      this.discovered.set(place, metadata);
      return metadata;
    } catch (error) {
      if (error instanceof Error) this.discovered.set(place, keptError(error), { ttl: failureMilliseconds });
      throw error;
    }
  }
}

/** No tenant has a space in its id. */
const placeOf = (tenantId: string, url: string): string => `${tenantId} ${url}`;

/** Reports whether issuers are the same: of one without a path, as discovery has it, a slash at the end does not matter. */
const isSameIssuer = (one: string | undefined, other: string): boolean =>
  one !== undefined && URL.parse(one)?.href === URL.parse(other)?.href;

/** Returns a URL to which browsers are sent with secrets. Throws unless it is as protected as the issuer. */
function checkedProtocol(url: URL, { issuer }: ProviderClient): URL {
  if (url.protocol !== 'https:' && url.protocol !== new URL(issuer).protocol) {
    throw new Error('an endpoint of the provider is not an https URL');
  }
  return url;
}

/** The library sends forms and JSON, never streams. */
function bodyText(body: unknown): string {
  if (typeof body === 'string') return body;
  if (body instanceof URLSearchParams) return body.toString();
  throw new Error('unsupported type of body');
}
