// Resolves credentials to callers with AuthService.ValidateToken. Results are cached for a few seconds and evicted when
// a revocation is announced.
import { hash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  ValidateTokenRequestSchema,
  type ValidateTokenResponse,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { LRUCache } from 'lru-cache';
import { looksLikeApiKey } from '../../auth/credentials/api-key-format.ts';
import { type Credential, proofHash } from '../../auth/credentials/device-proof.ts';
import { readKubernetesToken } from '../../auth/credentials/kubernetes-token.ts';
import { tenantPayload } from '../../auth/credentials/revocations.ts';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import { addressRefusal } from '../../platform/addresses/address-ranges.ts';
import type { Clock } from '../../platform/clock.ts';
import { revocationChannel, tenantChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import {
  type ErrorCode,
  KelletError,
  permissionDenied,
  tenantDeleted,
  tenantSuspended,
  unauthenticated,
  unavailable,
} from '../../platform/errors.ts';
import { type Caller, type CallerKind, internalContext, type Invoker, publicCaller } from '../../platform/rpc.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';
import type { Identity } from '../rate-limit/rate-limit.ts';
import { RateLimitExceeded } from '../rate-limit/rate-limit-exceeded.ts';
import { RecheckQueue } from './recheck-queue.ts';
import { RememberedIdentities } from './remembered-identities.ts';
import { RevocationIndex } from './revocation-index.ts';

const rememberMilliseconds = 10_000;
const rememberRefusalMilliseconds = 2_000;
/** Smaller, because rejections contain errors with stack traces and need no valid credential. */
const maximumRefused = 5_000;
/** Credentials that were valid here before, and failed credentials allowed per address (IPv6: per /64). */
const maximumProven = 200_000;
const failures = { perSecond: 20, burst: 200 };
/** Maximum concurrent rechecks of open calls, and the delay before retrying one that failed. */
const maximumChecks = 16;
const recheckMilliseconds = 1_000;
/** How long an open call goes on whose credential cannot be checked, unless it is a device's. */
const uncheckedMilliseconds = 30_000;
/** Calls of a refused tenant that are ended in one turn of the event loop. */
const endsAtOnce = 100;

/** Added to the error when the credential is missing or uses another scheme. */
const howToSend = 'send Authorization: Bearer <access token or API key>, or X-API-Key: <API key>';

/**
 * Returns the credential from request headers or metadata, or undefined. `Authorization` takes precedence over
 * `X-API-Key`.
 */
export function credentialOf(authorization: string | undefined, apiKey: string | undefined): string | undefined {
  if (authorization !== undefined && authorization !== '') return /^bearer +(\S+) *$/i.exec(authorization)?.[1] ?? '';
  return apiKey;
}

/** What a Kubernetes token is used for; ignored for other credentials. */
export interface TokenUse {
  /** The header X-Kellet-Namespace; empty means the namespace of the token's service account. */
  readonly namespace: string;
  /** The method's Access.kubernetes_permission. */
  readonly permission: string;
}

/** The codes that end an open call. */
const refusing: readonly ErrorCode[] = ['UNAUTHENTICATED', 'PERMISSION_DENIED'];

const noUse: TokenUse = { namespace: '', permission: '' };

/** A credential with the keys under which it is known. */
interface Presented {
  readonly credential: Credential;
  /** Hex SHA-256. */
  readonly hash: string;
  /** Cache key. That of a proof differs from the key of any text that a client could send. */
  readonly key: string;
}

function presented(credential: Credential): Presented {
  if (typeof credential === 'string') {
    const credentialHash = hash('sha256', credential, 'hex');
    return { credential, hash: credentialHash, key: credentialHash };
  }
  const proven = proofHash(credential).toString('hex');
  return { credential, hash: proven, key: `${credential.kind} ${proven}` };
}

/** A call that stays open while its caller remains authorised. */
export interface OpenCall {
  readonly credential: Credential;
  readonly caller: Caller;
  /** Address of the peer. */
  readonly address: string;
  /** Set for a Kubernetes token. */
  readonly use?: TokenUse;
  /** Returns why a caller whose rights have changed must be rejected. By default only the address is checked. */
  readonly refusalOf?: (caller: Caller) => string | undefined;
  /**
   * Called once, when the credential is revoked or expires (UNAUTHENTICATED), no longer suffices (PERMISSION_DENIED) or could not be
   * checked for half a minute (UNAVAILABLE; not for devices).
   */
  readonly end: (reason: KelletError) => void;
}

interface Watched {
  readonly call: OpenCall;
  timer: NodeJS.Timeout | undefined;
  /** Since when a check has been due that has not succeeded yet, by the clock. */
  dueSince: number | undefined;
}

/** Resolves credentials to callers. */
export class Authenticator {
  private readonly invoker: Invoker;
  private readonly clock: Clock;
  private readonly remembered = new RememberedIdentities();
  private readonly refused = new LRUCache<string, { readonly refusal: KelletError; readonly until: number }>({
    max: maximumRefused,
  });
  private readonly running = new Map<string, Promise<Identity>>();
  /** Keys, cut to 16 bytes of the hash, of credentials that were valid when last checked. */
  private readonly proven = new LRUCache<string, true>({ max: maximumProven });
  private readonly failures: TokenBuckets;
  /** Incremented by every announcement, so that a response requested before it is used once but not cached. */
  private announcements = 0;
  private isListening = true;
  private readonly watched = new Set<Watched>();
  private readonly watchedIndex = new RevocationIndex<Watched>();
  /**
   * Open calls to recheck. Limited in concurrency, because losing the listener makes all of them due at once.
   */
  private readonly toCheck = new RecheckQueue<Watched>();
  private checking = 0;
  /** Tenants whose open calls are being ended. */
  private readonly ending = new Set<string>();

  constructor(invoker: Invoker, clock: Clock) {
    this.invoker = invoker;
    this.clock = clock;
    this.failures = new TokenBuckets(clock, failures);
  }

  /**
   * Listens to the database for revocations and for changed tenant settings (limit, allowlist). While that connection
   * is lost, nothing is cached, and open calls are rechecked as often as the listener says so.
   */
  listen(database: Database): void {
    this.isListening = false;
    database.listen(
      [revocationChannel, tenantChannel],
      (channel, payload) => this.forget(channel === tenantChannel ? tenantPayload(payload) : payload),
      (lost) => {
        this.isListening = !lost;
        this.forget('*');
      },
    );
  }

  /**
   * Watches the credential of a call that stays open (a stream, a socket, a long poll) and ends the call when it is no
   * longer authorised. Returns a function that ends the watch.
   */
  watch(call: OpenCall): () => void {
    const watched: Watched = { call, timer: undefined, dueSince: undefined };
    this.watched.add(watched);
    this.watchedIndex.add(call.caller, watched);
    this.lookAgain(watched, call.caller);
    // Catches announcements made between the call's admission and now. Without one, the check is served from the cache.
    this.checkSoon(watched);
    return () => this.unwatch(watched);
  }

  private unwatch(watched: Watched): void {
    clearTimeout(watched.timer);
    this.toCheck.remove(watched.call.caller.tenantId, watched);
    if (this.watched.delete(watched)) this.watchedIndex.remove(watched.call.caller, watched);
  }

  /**
   * Rechecks an open call one second after its credential expires, and one of a Kubernetes identity as often as requests of it are
   * judged again: nothing announces a change of RBAC.
   */
  private lookAgain(watched: Watched, { expiresAt, kind }: Caller): void {
    clearTimeout(watched.timer);
    const untilExpiry = expiresAt === 0 ? Infinity : Math.max(0, expiresAt * 1000 - this.clock.now()) + 1000;
    const milliseconds = kind === 'kubernetes' ? Math.min(untilExpiry, rememberMilliseconds) : untilExpiry;
    // Timers longer than 2^31 ms fire immediately; no connection lasts that long.
    if (milliseconds < 2 ** 31) watched.timer = setTimeout(() => this.checkSoon(watched), milliseconds);
  }

  private checkSoon(watched: Watched): void {
    if (!this.watched.has(watched)) return;
    watched.dueSince ??= this.clock.now();
    this.toCheck.add(watched.call.caller.tenantId, watched);
    while (this.checking < maximumChecks && !this.toCheck.isEmpty) void this.checkNext();
  }

  private async checkNext(): Promise<void> {
    this.checking += 1;
    for (let watched = this.toCheck.take(); watched; watched = this.toCheck.take()) {
      // A call that cannot be ended must not keep the others open, nor take one of the few checks for ever.
      await this.check(watched).catch((error: unknown) => process.emitWarning(error as Error));
    }
    this.checking -= 1;
  }

  private async check(watched: Watched): Promise<void> {
    const { credential, address, use, end } = watched.call;
    let reason: KelletError;
    let isOfTenant = false;
    try {
      const now = (await this.identify(credential, address, use ?? noUse, false)).caller;
      if (!this.watched.has(watched)) return;
      watched.dueSince = undefined;
      const refusal = watched.call.refusalOf?.(now) ?? addressRefusal(address, now.ipAllowlist);
      // The expiry may have changed (a rotated key in its grace period).
      if (refusal === undefined) return this.lookAgain(watched, now);
      reason = permissionDenied(refusal);
    } catch (error) {
      if (!this.watched.has(watched)) return;
      if (error instanceof KelletError && refusing.includes(error.code)) {
        reason = error;
        // A valid credential of a tenant that is suspended or deleted.
        isOfTenant = error.code === 'PERMISSION_DENIED';
      } else {
        // Retried when the check fails: a revoked call must not stay open because the database was unavailable.
        const now = this.clock.now();
        const unchecked = now - (watched.dueSince ??= now);
        if (watched.call.caller.kind === 'device' || unchecked < uncheckedMilliseconds) {
          clearTimeout(watched.timer);
          watched.timer = setTimeout(() => this.checkSoon(watched), recheckMilliseconds);
          return;
        }
        reason = unavailable('the credential could not be checked');
      }
    }
    this.unwatch(watched);
    end(reason);
    if (isOfTenant) await this.endTenant(watched.call.caller.tenantId, reason);
  }

  /**
   * Ends all open calls of a tenant that is suspended or deleted: there may be thousands of them, and looking each of them up
   * would take seconds.
   */
  private async endTenant(tenantId: string, reason: KelletError): Promise<void> {
    if (this.ending.has(tenantId)) return;
    this.ending.add(tenantId);
    this.toCheck.removeAll(tenantId);
    let ended = 0;
    for (const watched of this.watchedIndex.meant(tenantPayload(tenantId))) {
      // Others have ended it, or its client has.
      if (!this.watched.has(watched)) continue;
      this.unwatch(watched);
      try {
        watched.call.end(reason);
      } catch (error) {
        process.emitWarning(error as Error);
      }
      ended += 1;
      if (ended % endsAtOnce === 0) await setImmediate();
    }
    this.ending.delete(tenantId);
  }

  /**
   * Returns the identity behind a credential; for a Kubernetes token, for this use of it. Throws UNAUTHENTICATED if it
   * is missing or invalid, PERMISSION_DENIED if its tenant is suspended or deleted, RESOURCE_EXHAUSTED if it is not cached and its
   * address has sent too many invalid ones, or whatever the auth service throws.
   */
  authenticate(credential: Credential | undefined, address: string, use: TokenUse = noUse): Promise<Identity> {
    return this.identify(credential, address, use, true);
  }

  /** `mayGuess` is true for a credential that comes with a request, and false for that of a call already admitted. */
  private async identify(
    credential: Credential | undefined,
    address: string,
    use: TokenUse,
    mayGuess: boolean,
  ): Promise<Identity> {
    if (credential === undefined) throw unauthenticated(`a credential is required: ${howToSend}`);
    if (credential === '') throw unauthenticated(`a valid credential is required: ${howToSend}`);
    if (typeof credential === 'string' && credential.length > 8192) throw unauthenticated();
    const given = presented(credential);
    let { key } = given;
    let known = this.remembered.get(key);
    const isKubernetes = !known && typeof credential === 'string' && readKubernetesToken(credential) !== undefined;
    if (isKubernetes) {
      // The cluster's decision applies to one namespace and one permission.
      key = hash('sha256', `${credential}\n${use.namespace}\n${use.permission}`, 'hex');
      known = this.remembered.get(key);
    }
    if (known && known.until > this.clock.now()) return known.identity;
    const refused = this.refused.get(key);
    if (refused && refused.until > this.clock.now()) throw refused.refusal;
    let run = this.running.get(key);
    if (!run) {
      if (mayGuess) this.refuseGuessing(given, address);
      const started = this.validate(given, isKubernetes ? use : undefined, key, address, mayGuess).finally(() => {
        if (this.running.get(key) === started) this.running.delete(key);
      });
      run = started;
      this.running.set(key, run);
    }
    return run;
  }

  /** A credential that was valid before is not locked out because someone else behind the same address is guessing. */
  private refuseGuessing(given: Presented, address: string): void {
    const wait = this.failures.wait(addressBlock(address));
    if (wait > 0 && !this.proven.has(provenKey(given))) throw new RateLimitExceeded(wait);
  }

  /** Reports whether the credential was found valid within the last seconds; always false for Kubernetes tokens. */
  isKnown(credential: string): boolean {
    const known = this.remembered.get(presented(credential).key);
    return known !== undefined && known.until > this.clock.now();
  }

  private async validate(
    given: Presented,
    use: TokenUse | undefined,
    key: string,
    address: string,
    mayGuess: boolean,
  ): Promise<Identity> {
    const { announcements } = this;
    const reply = await this.invoker.unary(
      AuthService.method.validateToken,
      create(ValidateTokenRequestSchema, { ...requestOf(given.credential), ...use }),
      internalContext(publicCaller, { address }),
    );
    const now = this.clock.now();
    const outcome = identityOf(reply, given.hash, !isToken(given.credential));
    const mayRemember = this.isListening && this.announcements === announcements;
    if (outcome instanceof KelletError) {
      // A credential that was valid before is not a guess: it was revoked or has expired. That of a suspended or
      // deleted tenant is valid, and only refused.
      const isGuess = outcome.code === 'UNAUTHENTICATED' && !this.proven.delete(provenKey(given));
      if (isGuess && mayGuess) this.failures.charge(addressBlock(address));
      if (mayRemember) this.refused.set(key, { refusal: outcome, until: now + rememberRefusalMilliseconds });
      throw outcome;
    }
    this.proven.set(provenKey(given), true);
    const { expiresAt, kind, tenantId } = outcome.caller;
    const end = expiresAt === 0 ? Infinity : expiresAt * 1000;
    const isRefused = kind === 'kubernetes' && tenantId === '';
    const milliseconds = isRefused ? rememberRefusalMilliseconds : rememberMilliseconds;
    if (mayRemember) this.remembered.set(key, { identity: outcome, until: Math.min(now + milliseconds, end) });
    return outcome;
  }

  /** Handles an announcement: evicts what it names (see revocation-index.ts), or everything for `*`. */
  private forget(key: string): void {
    this.announcements += 1;
    // Later requests must not share a call that started before the announcement.
    this.running.clear();
    this.refused.clear();
    this.remembered.forget(key);
    for (const watched of this.watchedIndex.meant(key)) this.checkSoon(watched);
  }
}

const callerKinds = new Map<Kind | undefined, CallerKind>([
  [Kind.user, 'user'],
  [Kind.service, 'service'],
  [Kind.device, 'device'],
  [Kind.platform_admin, 'platform'],
  [Kind.kubernetes, 'kubernetes'],
]);

/** 32 hexadecimal digits of a credential's key. */
const provenKey = ({ key }: Presented): string => key.slice(0, key.length - 32);

/** Reports whether a credential can be an access token. */
const isToken = (credential: Credential): boolean => typeof credential === 'string' && !looksLikeApiKey(credential);

function requestOf(credential: Credential): MessageInitShape<typeof ValidateTokenRequestSchema> {
  if (typeof credential === 'string') return { token: credential };
  return credential.kind === 'certificate'
    ? { deviceProof: { proof: { case: 'certificateSha256', value: credential.sha256 } } }
    : { deviceProof: { proof: { case: 'pskIdentity', value: credential.identity } } };
}

/**
 * Converts ValidateToken's response to a caller, or to the error that rejects it. `isKey` marks a credential that is not
 * an access token.
 */
export function identityOf(
  reply: ValidateTokenResponse,
  credentialHash: string,
  isKey = false,
): Identity | KelletError {
  const { grant } = reply;
  if (!reply.valid) return refusalOf(grant?.reason, isKey);
  const kind = callerKinds.get(reply.kind);
  // A response without a grant was not meant for the gateway.
  if (kind === undefined || !grant) return unauthenticated();
  return {
    rateLimitPerMinute: grant.rateLimitPerMinute,
    caller: {
      kind,
      tenantId: reply.tenantId,
      userId: kind === 'service' ? grant.keyId : reply.userId,
      deviceId: reply.deviceId,
      customerId: grant.customerId,
      name: grant.name,
      scopes: sharedScopes(reply.scopes),
      limitedGrants: grant.limitedGrants.map(({ scopes, deviceGroupIds }) => ({ scopes, deviceGroupIds })),
      credentialHash,
      sessionId: grant.sessionId,
      ipAllowlist: grant.ipAllowlist,
      expiresAt: reply.expiresAt ? Math.floor(timestampMs(reply.expiresAt) / 1000) : 0,
      ...(grant.credentialId === '' ? {} : { credentialId: grant.credentialId }),
      ...(grant.mustEnroll ? { mustEnroll: true } : {}),
      ...(grant.stepUpUntil ? { stepUpUntil: Math.floor(timestampMs(grant.stepUpUntil) / 1000) } : {}),
      ...(grant.enrollUntil ? { enrollUntil: Math.floor(timestampMs(grant.enrollUntil) / 1000) } : {}),
    },
  };
}

/** Sets of scopes by their names. Cleared when there are more than roles and keys usually have. */
const scopeSets = new Map<string, ReadonlySet<string>>();
const maximumScopeSets = 1000;

/** Returns the set of these scopes, which all callers who have the same share: a fleet of devices has one. */
function sharedScopes(scopes: readonly string[]): ReadonlySet<string> {
  const names = scopes.join(' ');
  const known = scopeSets.get(names);
  if (known) return known;
  if (scopeSets.size >= maximumScopeSets) scopeSets.clear();
  const made = new Set(scopes);
  scopeSets.set(names, made);
  return made;
}

/** Only access tokens have a refresh token. */
function refusalOf(reason: Reason | undefined, isKey: boolean): KelletError {
  if (reason === Reason.suspended) return tenantSuspended();
  if (reason === Reason.deleted) return tenantDeleted();
  if (reason === Reason.expired && !isKey) {
    return unauthenticated('the token has expired; exchange the refresh token at POST /api/v1/auth/refresh');
  }
  return unauthenticated();
}
