// Sign-in at a tenant's OpenID Connect provider: begun by a redirect to it, completed when the browser returns.
import { randomBytes } from 'node:crypto';
import type { FinishSsoRequest, LogoutSsoRequest, StartSsoRequest } from '@kellet/proto/es/kellet/v1/auth_pb';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { madeOnce } from '../../platform/concurrency/made-once.ts';
import type { Transaction } from '../../platform/database/database.ts';
import {
  failedPrecondition,
  invalidArgument,
  type KelletError,
  notFound,
  unauthenticated,
  unavailable,
} from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { BlockedAddressError } from '../../platform/outbound/outbound-guard.ts';
import { textField } from '../../platform/requests/fields.ts';
import type { Caller } from '../../platform/rpc.ts';
import type { SealedSecrets } from '../../platform/sealed-secrets.ts';
import { holdOffPurge, refuseClosedTenant } from '../../policies/tenant-reader.ts';
import { insertUser, type UserRow } from '../accounts/account-store.ts';
import { isSameMailbox } from '../accounts/email-addresses.ts';
import { hashPassword } from '../accounts/passwords.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import type { FirstStep, SecondStep } from '../sign-in/second-step.ts';
import type { SessionOrigin } from '../sign-in/session-origin.ts';
import { lockProviderSession, revokeSessions } from '../sign-in/sessions.ts';
import { isRefusal, type SignInEvents } from '../sign-in/sign-in-events.ts';
import { changeRole } from '../users/users.ts';
import {
  begunIn,
  type BegunSignIn,
  bindingCookie,
  endedCookie,
  isState,
  newSecrets,
  signInSeconds,
  stateHash,
} from './browser-binding.ts';
import type { OpenidProviders, ProviderClient } from './openid-provider.ts';
import { admit, type Person } from './provider-fields.ts';
import { idTokenOwner, secretOwner } from './provider-handlers.ts';
import {
  findIdentity,
  findProvider,
  findProviderClient,
  findProvidersFor,
  findUserByEmail,
  insertIdentity,
  insertReturn,
  type ProviderClientRow,
  type ProviderRow,
} from './provider-store.ts';
import { wasSignedOut } from './sign-outs.ts';

/** What single sign-on works with. */
export interface SingleSignOnParts extends Pick<AuthPlatform, 'config' | 'database' | 'clock' | 'logger'> {
  readonly providers: OpenidProviders;
  readonly secrets: SealedSecrets;
  readonly secondStep: SecondStep;
  readonly events: SignInEvents;
}

/** A redirect to a provider. */
export interface StartedSignIn {
  readonly authorizationUrl: string;
  readonly state: string;
  /** The Set-Cookie that goes with it. */
  readonly cookie: string;
}

/** The browser's return from a provider. */
export interface ReturnedBrowser {
  readonly request: FinishSsoRequest;
  /** The cookies that {@link StartedSignIn} set. */
  readonly cookies: string;
  readonly origin: SessionOrigin;
}

/** A sign-in at a provider that is complete, but for a second factor of the user. */
export interface FinishedSignIn {
  readonly step: FirstStep;
  /** Where to send the browser; empty if nowhere. */
  readonly redirectUri: string;
}

/** Where a browser ends a person's session at a provider; both are empty if there is no such place. */
export interface ProviderLogout {
  readonly logoutUrl: string;
  readonly state: string;
}

/** Longer ID tokens are not kept: the URL that signs out at the provider would be too long for browsers and servers. */
const maximumIdToken = 6000;

/** Returns that are completed at once: each holds what the provider responds, which may be slow, as objects. */
const returnsAtOnce = { total: 32, perOwner: 8, waitingPerOwner: 200 };

/** How long a return waits for its turn. */
const turnMilliseconds = 10_000;

/** Signs in people who return from a provider, and signs them out there. */
export class SingleSignOn {
  private readonly parts: SingleSignOnParts;
  private readonly returns = new FairSlots({
    ...returnsAtOnce,
    refusal: () => unavailable('too many people are signing in at providers: try again'),
  });
  /** The hash of a password that is not known to anyone, for users created by a sign-in. */
  private readonly hashOfUnknownPassword = madeOnce(() => hashPassword(randomBytes(32).toString('base64')));

  constructor(parts: SingleSignOnParts) {
    this.parts = parts;
  }

  /**
   * Begins a sign-in. `host` is the Host that the browser asked, used while KELLET_PUBLIC_URL is not set. Throws
   * INVALID_ARGUMENT, NOT_FOUND without such a provider, and UNAVAILABLE when it cannot be reached.
   */
  async start(request: StartSsoRequest, host: string): Promise<StartedSignIn> {
    const { config, clock, secrets } = this.parts;
    const redirectUri = redirectField(request.redirectUri, config.dashboardOrigin);
    const provider = await this.providerFor(request);
    const callback = callbackOf(config.publicUrl, host, config.restTls ? 'https' : 'http');
    const { state, nonce, codeVerifier } = newSecrets();
    const { tenant_id: tenantId, issuer } = provider;
    const begun: BegunSignIn = {
      ...{ tenantId, provider: provider.provider, issuer, nonce, codeVerifier, callback, redirectUri },
      expiresAt: clock.now() + signInSeconds * 1000,
    };
    const client = this.clientOf(provider);
    const url = await this.talk(provider, () =>
      this.parts.providers.authorizationUrl(client, callback, { state, nonce, codeVerifier }),
    );
    return { authorizationUrl: url.href, state, cookie: bindingCookie(secrets, state, begun) };
  }

  /** Returns the Set-Cookie that forgets a sign-in, or undefined if this browser did not begin it. */
  forget({ request, cookies }: ReturnedBrowser): string | undefined {
    const begun = this.begun(request.state, cookies);
    return begun && endedCookie(request.state, begun.callback);
  }

  /**
   * Completes a sign-in. Throws UNAUTHENTICATED, the same for every cause: another browser, a second return, a response
   * of another provider or to another sign-in, and a person that the provider's settings do not admit. The log has the
   * reason. Throws UNAVAILABLE if the provider cannot be reached, and if too many returns of the tenant or in all are being completed.
   */
  async finish(returned: ReturnedBrowser): Promise<FinishedSignIn> {
    const { events, logger } = this.parts;
    const { request, cookies, origin } = returned;
    const begun = this.begun(request.state, cookies);
    if (!begun) {
      logger.warn({ reason: 'this browser did not begin it, or too long ago' }, 'a sign-in at a provider was refused');
      events.returnedElsewhere(origin);
      throw refused();
    }
    try {
      return await this.returns.run(begun.tenantId, () => this.finishBegun(returned, begun), {
        milliseconds: turnMilliseconds,
      });
    } catch (error) {
      if (isRefusal(error)) {
        const { tenantId, provider } = begun;
        const failure = { factor: { kind: 'provider', id: provider }, accounts: [], email: '', tenantId } as const;
        events.failed({ ...failure, code: error.code }, origin);
      }
      throw error;
    }
  }

  private async finishBegun(returned: ReturnedBrowser, begun: BegunSignIn): Promise<FinishedSignIn> {
    const { database, logger, providers, secondStep } = this.parts;
    const { request, origin } = returned;
    const { tenantId, redirectUri, nonce, codeVerifier } = begun;
    const refuse = (reason: string): KelletError => {
      logger.warn({ tenant: tenantId, provider: begun.provider, reason }, 'a sign-in at a provider was refused');
      return refused();
    };
    const expiresAt = new Date(begun.expiresAt);
    const returnedAt = await database.system(async (tx) => {
      if (!(await holdOffPurge(tx, tenantId))) throw refuse(purged);
      return insertReturn(tx, tenantId, stateHash(request.state), expiresAt);
    });
    if (!returnedAt) throw refuse('it has returned before');
    const provider = await database.read(tenantId, (tx) => findProvider(tx, tenantId, begun.provider));
    if (provider?.issuer !== begun.issuer) throw refuse('the provider was changed or deleted');
    if (request.error !== '') throw refuse(`the provider reports ${shortCode(request.error)}`);
    const returnedTo = new URL(begun.callback);
    const { code, state, iss } = request;
    for (const [name, value] of Object.entries({ code, state, iss })) {
      if (value !== '') returnedTo.searchParams.set(name, value);
    }
    const client = this.clientOf(provider);
    const { idToken, sid, claims } = await this.talk(provider, () =>
      providers.person(client, returnedTo, { state, nonce, codeVerifier }),
    );
    const person = admit(claims, provider);
    if (typeof person === 'string') throw refuse(person);
    const passwordHash = await this.hashOfUnknownPassword();
    const user = await database.tenant(tenantId, (tx) =>
      userOf(tx, provider, { ...person, address: origin.address }, passwordHash, (action, of) => {
        return this.parts.events.byProvider(tx, action, of, provider.provider, origin);
      }),
    );
    if (typeof user === 'string') throw refuse(user);
    const aal = saysMfa(claims.amr) ? 'aal2' : 'aal1';
    const owner = idTokenOwner(tenantId, user.user_id);
    const kept = idToken.length > maximumIdToken ? null : this.parts.secrets.seal(owner, idToken);
    const step = await secondStep.begin(user, origin, {
      aal,
      atProvider: { provider: begun.provider, idToken: kept, sid, settingsOf: provider.updated_at },
      holds: async (tx) => !(await wasSignedOut(tx, begun, { subject: person.subject, sid, returnedAt })),
    });
    if (!step) throw refuse('the user was changed or signed out meanwhile');
    logger.info({ tenant: tenantId, provider: begun.provider, user: user.user_id }, 'signed in at a provider');
    return { step, redirectUri };
  }

  /**
   * Ends the caller's session, and returns where the browser ends the one at the provider that it began with. Throws
   * INVALID_ARGUMENT before anything is ended; a provider that is away only leaves the URL empty.
   */
  async signOut({ redirectUri: given = '' }: LogoutSsoRequest, caller: Caller): Promise<ProviderLogout> {
    const { config, database, providers, secrets, logger } = this.parts;
    const redirectUri = redirectField(given, config.dashboardOrigin);
    const { tenantId, sessionId, userId } = caller;
    const atProvider = await database.system(async (tx) => {
      const held = await lockProviderSession(tx, sessionId);
      await revokeSessions(tx, [sessionId]);
      return held;
    });
    const nowhere = { logoutUrl: '', state: '' };
    if (!atProvider) return nowhere;
    try {
      const provider = await database.read(tenantId, (tx) => findProviderClient(tx, tenantId, atProvider.provider));
      if (!provider) return nowhere;
      const idToken = secrets.open(idTokenOwner(tenantId, userId), atProvider.idToken);
      const { state } = newSecrets();
      const url = await providers.endSessionUrl(this.clientOf(provider), idToken, redirectUri, state);
      return url ? { logoutUrl: url.href, state } : nowhere;
    } catch (error) {
      const who = { tenant: tenantId, provider: atProvider.provider };
      logger.warn({ ...who, reason: kindsOf(error).join(', ') }, 'signing out at a provider is not possible');
      return nowhere;
    }
  }

  private begun(state: string, cookies: string): BegunSignIn | undefined {
    return isState(state) ? begunIn(cookies, this.parts.secrets, state, this.parts.clock.now()) : undefined;
  }

  private async providerFor({ provider: named, tenantId }: StartSsoRequest): Promise<ProviderClientRow> {
    textField('provider', named, { minimum: 1, maximum: 253 });
    textField('tenant_id', tenantId, { maximum: 63 });
    const rows = await this.parts.database.systemRead((tx) => findProvidersFor(tx, named.toLowerCase(), tenantId));
    const [first, second] = rows;
    if (!first) throw notFound('provider');
    if (second) throw invalidArgument('tenant_id is required: several tenants have such a provider');
    return first;
  }

  private clientOf(provider: ProviderClientRow): ProviderClient {
    const owner = secretOwner(provider.tenant_id, provider.provider);
    try {
      const clientSecret = this.parts.secrets.open(owner, provider.client_secret);
      return { tenantId: provider.tenant_id, issuer: provider.issuer, clientId: provider.client_id, clientSecret };
    } catch (error) {
      this.parts.logger.error({ provider: owner, err: error }, 'the secret of a provider cannot be decrypted');
      throw failedPrecondition('the client_secret of the provider has to be set again');
    }
  }

  /** Runs an exchange with a provider. Its errors may contain codes and claims: only their kind is logged. */
  private async talk<T>(provider: ProviderClientRow, exchange: () => Promise<T>): Promise<T> {
    try {
      return await exchange();
    } catch (error) {
      const kinds = kindsOf(error);
      const who = { tenant: provider.tenant_id, provider: provider.provider };
      this.parts.logger.warn({ ...who, reason: kinds.join(', ') }, 'an exchange with a provider failed');
      const isAway = chainOf(error).some((one) => one instanceof BlockedAddressError || isConnectionError(one));
      throw isAway ? unavailable('the provider cannot be reached') : refused();
    }
  }
}

/** Why a sign-in is refused that began before its tenant was purged: it must leave no row. */
const purged = 'the tenant is being purged';

/** Records what a sign-in changes about a user. */
type Record = (action: Parameters<SignInEvents['byProvider']>[1], user: UserRow) => Promise<void>;

/** Returns the user of a person, created if new, or the reason for refusing the sign-in. */
async function userOf(
  tx: Transaction,
  settings: ProviderRow,
  person: Person & { readonly address: string },
  passwordHash: string,
  record: Record,
): Promise<UserRow | string> {
  const { tenant_id: tenantId, provider, role_mapping: mapping } = settings;
  if (!(await holdOffPurge(tx, tenantId))) return purged;
  // The provider has said who it is, so this reveals nothing. Opening the session would refuse it only after the user was changed.
  await refuseClosedTenant(tx, tenantId, person.address);
  const key = { tenantId, provider, subject: person.subject };
  let known = await findIdentity(tx, key);
  // First sign-ins take turns, so that two concurrent ones of the same person create one user.
  const current = await findProvider(tx, tenantId, provider, known ? '' : 'FOR UPDATE');
  // The exchange may have taken long, and what it says been that of an issuer that is not trusted any more.
  if (current?.updated_at.getTime() !== settings.updated_at.getTime())
    return 'the provider was changed or deleted meanwhile';
  known ??= await findIdentity(tx, key);
  if (known) {
    if (known.disabled) return 'the user is disabled';
    const isMapped = known.provisioned && Object.keys(mapping).length > 0 && known.role !== person.role;
    if (!isMapped) return known;
    const changed = await changeRole(tx, known, person.role);
    if (changed.role !== known.role) await record('auth.role_mapped', changed);
    return changed;
  }
  const existing = await findUserByEmail(tx, tenantId, person.email);
  if (existing && !isSameMailbox(existing.email, person.email)) return 'the address resembles that of another user';
  if (existing?.disabled) return 'the user is disabled';
  const { email, name, role } = person;
  const made = { userId: newId(), tenantId, email, name, role, passwordHash, disabled: false };
  const user = existing ?? (await insertUser(tx, made));
  if (!user) return 'the address was taken meanwhile';
  const isLinked = await insertIdentity(tx, key, user.user_id, existing === undefined);
  if (!isLinked) return 'the address belongs to another person at the provider';
  await record(existing ? 'auth.identity_linked' : 'auth.user_provisioned', user);
  return user;
}

/** Returns the URL to which providers return browsers. Throws FAILED_PRECONDITION if it is not known. */
function callbackOf(publicUrl: string, host: string, scheme: 'http' | 'https'): string {
  const isHost = /^[a-z0-9.-]+(:\d+)?$|^\[[0-9a-f:]+\](:\d+)?$/i.test(host);
  if (publicUrl === '' && !isHost) throw failedPrecondition('single sign-on needs the setting KELLET_PUBLIC_URL');
  const base = publicUrl === '' ? `${scheme}://${host}` : publicUrl;
  return new URL('api/v1/auth/sso/callback', base.endsWith('/') ? base : `${base}/`).href;
}

/** Checks where to send the browser: to the dashboard alone, since the tokens go with it. Throws INVALID_ARGUMENT. */
function redirectField(redirectUri: string, dashboardOrigin: string): string {
  if (redirectUri === '') return '';
  textField('redirect_uri', redirectUri, { maximum: 512 });
  const url = URL.parse(redirectUri);
  const isOurs =
    dashboardOrigin !== '' && url?.origin === dashboardOrigin && url.username === '' && url.password === '';
  if (!isOurs || url.hash !== '') {
    throw invalidArgument("redirect_uri must be a URL of the dashboard's origin, without a fragment");
  }
  return url.href;
}

/** Reports whether a provider says that the person used several factors (RFC 8176). */
const saysMfa = (amr: unknown): boolean => Array.isArray(amr) && amr.includes('mfa');

const refused = (): KelletError => unauthenticated('the sign-in at the provider could not be completed: begin again');

/** A provider's error code, which may be anything. */
const shortCode = (code: string): string => (/^[a-z_]{1,64}$/.test(code) ? code : 'an error');

/** An error and its causes. */
function chainOf(error: unknown): Error[] {
  const chain: Error[] = [];
  for (let one = error; one instanceof Error && chain.length < 5; one = one.cause) chain.push(one);
  return chain;
}

const codeOf = (error: Error): string => ('code' in error && typeof error.code === 'string' ? error.code : '');

const kindsOf = (error: unknown): string[] =>
  chainOf(error)
    .flatMap((one) => [one.name, codeOf(one), 'error' in one ? shortCode(String(one.error)) : ''])
    .filter(Boolean);

/** Reports whether the provider could not be reached, in time or at all. */
const isConnectionError = (error: Error): boolean =>
  error.name === 'TimeoutError' || /^(E[A-Z]+|ERR_TLS_.*|CERT_.*|.*_CERT.*|UND_ERR_.*)$/.test(codeOf(error));
