// Whom a credential stands for: asked of AuthService.ValidateToken, remembered for a few seconds, forgotten at once when a
// revocation is announced (DECISIONS 23).
import { hash } from 'node:crypto';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  ValidateTokenRequestSchema,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
  type ValidateTokenResponse,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { isAllowed } from '../../platform/address-ranges.ts';
import { readKubernetesToken } from '../../auth/credentials/kubernetes-token.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { revocationChannel, tenantChannel } from '../../platform/database/channels.ts';
import { KelletError, permissionDenied, unauthenticated } from '../../platform/errors.ts';
import { internalContext, publicCaller, type Caller, type CallerKind, type Invoker } from '../../platform/rpc.ts';
import { addressBlock } from '../../platform/address-block.ts';
import { BoundedMap } from '../../platform/bounded-map.ts';
import type { Identity } from '../rate-limit/rate-limit.ts';
import { RateLimitExceeded } from '../rate-limit/rate-limit-exceeded.ts';
import { RevocationIndex, tenantKey } from './revocation-index.ts';
import { TokenBuckets } from '../rate-limit/token-bucket.ts';

const rememberMilliseconds = 10_000;
const rememberRefusalMilliseconds = 2_000;
const maximumRemembered = 50_000;
/** They are errors with their stacks, and anybody can make more of them. */
const maximumRefused = 5_000;
/** Credentials that have held here before, and how many failed ones an address (IPv6: /64) may ask about. */
const maximumProven = 200_000;
const failures = { perSecond: 20, burst: 200 };
/** Open calls that are judged again at the same time, and how long after an answer that did not tell. */
const maximumChecks = 16;
const recheckMilliseconds = 1_000;

/** How a credential is sent, for who sent none, or one of another scheme. */
const howToSend = 'send Authorization: Bearer <access token or API key>, or X-API-Key: <API key>';

/** The credential of a request's headers or metadata, or undefined when there is none. `Authorization` wins over `X-API-Key`. */
export function credentialOf(authorization: string | undefined, apiKey: string | undefined): string | undefined {
  if (authorization !== undefined && authorization !== '') return /^bearer +(\S+) *$/i.exec(authorization)?.[1] ?? '';
  return apiKey;
}

/** What a Kubernetes token is used for; of no meaning with any other credential. */
export interface TokenUse {
  /** The header X-Kellet-Namespace; empty: the namespace of the token's service account. */
  readonly namespace: string;
  /** The method's Access.kubernetes_permission. */
  readonly permission: string;
}

const noUse: TokenUse = { namespace: '', permission: '' };

interface Remembered {
  readonly identity: Identity;
  readonly until: number;
}

/** Identities by the hash of their credential, found by what revokes them too. */
class RememberedIdentities extends BoundedMap<string, Remembered> {
  private readonly index = new RevocationIndex<string>();

  override set(credentialHash: string, entry: Remembered): this {
    super.set(credentialHash, entry);
    this.index.add(entry.identity.caller, credentialHash);
    return this;
  }

  override delete(credentialHash: string): boolean {
    const entry = this.get(credentialHash);
    if (entry) this.index.remove(entry.identity.caller, credentialHash);
    return super.delete(credentialHash);
  }

  forget(key: string): void {
    for (const credentialHash of this.index.meant(key)) this.delete(credentialHash);
  }
}

/** A call that stays open, and what must go on being true of its caller. */
export interface OpenCall {
  readonly credential: string;
  readonly caller: Caller;
  /** Of the peer. */
  readonly address: string;
  /** For a Kubernetes token. */
  readonly use?: TokenUse;
  /** Why a caller whose rights have changed may not go on; by default only the address is judged. */
  readonly refusalOf?: (caller: Caller) => string | undefined;
  /** Called once, when the credential is revoked or expired (UNAUTHENTICATED) or no longer enough (PERMISSION_DENIED). */
  readonly end: (reason: KelletError) => void;
}

interface Watched {
  readonly call: OpenCall;
  timer: NodeJS.Timeout | undefined;
}

/** Turns credentials into callers. */
export class Authenticator {
  private readonly invoker: Invoker;
  private readonly clock: Clock;
  private readonly remembered = new RememberedIdentities(maximumRemembered);
  private readonly refused = new BoundedMap<string, { readonly refusal: KelletError; readonly until: number }>(
    maximumRefused,
  );
  private readonly running = new Map<string, Promise<Identity>>();
  /** The hashes of credentials that held when they were last asked about, cut to 16 bytes. */
  private readonly proven = new BoundedMap<string, true>(maximumProven);
  private readonly failures: TokenBuckets;
  /** Raised by every announcement, so that an answer that was under way meanwhile is used once and not remembered. */
  private announcements = 0;
  private isListening = true;
  private readonly watched = new Set<Watched>();
  private readonly watchedIndex = new RevocationIndex<Watched>();
  /** Open calls to be judged again, in order; a few at a time, or a lost listener would ask for all of them at once. */
  private readonly toCheck = new Set<Watched>();
  private checking = 0;

  constructor(invoker: Invoker, clock: Clock) {
    this.invoker = invoker;
    this.clock = clock;
    this.failures = new TokenBuckets(clock, failures);
  }

  /**
   * Hears from the database of revocations and of tenants whose settings (limit, allowlist) have changed; while that
   * connection is lost nothing is remembered.
   */
  listen(database: Database): void {
    this.isListening = false;
    database.listen(
      [revocationChannel, tenantChannel],
      (channel, payload) => this.forget(channel === tenantChannel ? tenantKey(payload) : payload),
      (lost) => {
        this.isListening = !lost;
        this.forget('*');
      },
    );
  }

  /**
   * Watches the credential of a call that stays open (a stream, a socket, a long poll) and ends the call when it must not go
   * on. The function that comes back ends the watch.
   */
  watch(call: OpenCall): () => void {
    const watched: Watched = { call, timer: undefined };
    this.watched.add(watched);
    this.watchedIndex.add(call.caller, watched);
    this.awaitExpiry(watched, call.caller.expiresAt);
    // What was announced between the call's admission and now reached nobody; nothing new costs a look into memory.
    this.checkSoon(watched);
    return () => this.unwatch(watched);
  }

  private unwatch(watched: Watched): void {
    clearTimeout(watched.timer);
    this.toCheck.delete(watched);
    if (this.watched.delete(watched)) this.watchedIndex.remove(watched.call.caller, watched);
  }

  /** Judges an open call again a second after its credential has expired. */
  private awaitExpiry(watched: Watched, expiresAt: number): void {
    clearTimeout(watched.timer);
    if (expiresAt === 0) return;
    const milliseconds = Math.max(0, expiresAt * 1000 - this.clock.now()) + 1000;
    // A timer longer than 2^31 ms fires at once; such a credential outlives any connection.
    if (milliseconds < 2 ** 31) watched.timer = setTimeout(() => this.checkSoon(watched), milliseconds);
  }

  private checkSoon(watched: Watched): void {
    if (!this.watched.has(watched)) return;
    this.toCheck.add(watched);
    while (this.checking < maximumChecks && this.toCheck.size > 0) void this.checkNext();
  }

  private async checkNext(): Promise<void> {
    this.checking += 1;
    for (const watched of this.toCheck) {
      this.toCheck.delete(watched);
      await this.check(watched);
    }
    this.checking -= 1;
  }

  private async check(watched: Watched): Promise<void> {
    const { credential, address, use, end } = watched.call;
    let reason: KelletError;
    try {
      const now = (await this.identify(credential, address, use ?? noUse, false)).caller;
      if (!this.watched.has(watched)) return;
      const refusal =
        watched.call.refusalOf?.(now) ??
        (isAllowed(address, now.ipAllowlist) ? undefined : 'this address is not on the allowlist');
      // A credential may have got another end meanwhile (a rotated key with its grace).
      if (refusal === undefined) return this.awaitExpiry(watched, now.expiresAt);
      reason = permissionDenied(refusal);
    } catch (error) {
      if (!this.watched.has(watched)) return;
      if (!(error instanceof KelletError) || error.code !== 'UNAUTHENTICATED') {
        // Who cannot tell is asked again: a revoked call must not stay open because the database was away.
        clearTimeout(watched.timer);
        watched.timer = setTimeout(() => this.checkSoon(watched), recheckMilliseconds);
        return;
      }
      reason = error;
    }
    this.unwatch(watched);
    end(reason);
  }

  /**
   * The identity behind a credential; for a Kubernetes token, in this use of it. Throws UNAUTHENTICATED for one that is
   * missing or does not hold, RESOURCE_EXHAUSTED for one that is unknown here and comes from an address from which too many
   * did not hold, and whatever the auth service throws when it cannot tell.
   */
  authenticate(credential: string | undefined, address: string, use: TokenUse = noUse): Promise<Identity> {
    return this.identify(credential, address, use, true);
  }

  /** `mayGuess`: the credential comes with a request, and is not that of a call which has been admitted. */
  private async identify(
    credential: string | undefined,
    address: string,
    use: TokenUse,
    mayGuess: boolean,
  ): Promise<Identity> {
    if (credential === undefined) throw unauthenticated(`a credential is required: ${howToSend}`);
    if (credential === '') throw unauthenticated(`a valid credential is required: ${howToSend}`);
    if (credential.length > 8192) throw unauthenticated();
    const credentialHash = hash('sha256', credential, 'hex');
    let key = credentialHash;
    let known = this.remembered.get(key);
    const isKubernetes = !known && readKubernetesToken(credential) !== undefined;
    if (isKubernetes) {
      // The cluster's answer is about one namespace and one permission.
      key = hash('sha256', `${credential}\n${use.namespace}\n${use.permission}`, 'hex');
      known = this.remembered.get(key);
    }
    if (known && known.until > this.clock.now()) return known.identity;
    const refused = this.refused.get(key);
    if (refused && refused.until > this.clock.now()) throw refused.refusal;
    let run = this.running.get(key);
    if (!run) {
      if (mayGuess) this.refuseGuessing(credentialHash, address);
      const request = { token: credential, ...(isKubernetes ? use : {}) };
      const started = this.validate(request, credentialHash, key, address, mayGuess).finally(() => {
        if (this.running.get(key) === started) this.running.delete(key);
      });
      run = started;
      this.running.set(key, run);
    }
    return run;
  }

  /** Who shares an address with somebody who guesses is not locked out by that, once its credential has held. */
  private refuseGuessing(credentialHash: string, address: string): void {
    const wait = this.failures.wait(addressBlock(address));
    if (wait > 0 && !this.proven.has(credentialHash.slice(0, 32))) throw new RateLimitExceeded(wait);
  }

  /** Whether the credential has been found to hold within the last seconds; a Kubernetes token is never known. */
  isKnown(credential: string): boolean {
    const known = this.remembered.get(hash('sha256', credential, 'hex'));
    return known !== undefined && known.until > this.clock.now();
  }

  private async validate(
    request: MessageInitShape<typeof ValidateTokenRequestSchema> & { token: string },
    credentialHash: string,
    key: string,
    address: string,
    mayGuess: boolean,
  ): Promise<Identity> {
    const { announcements } = this;
    const answer = await this.invoker.unary(
      AuthService.method.validateToken,
      create(ValidateTokenRequestSchema, request),
      internalContext(publicCaller, { address }),
    );
    const now = this.clock.now();
    const outcome = identityOf(answer, credentialHash, request.token.startsWith('sk_live_'));
    const mayRemember = this.isListening && this.announcements === announcements;
    const provenKey = credentialHash.slice(0, 32);
    if (outcome instanceof KelletError) {
      // One that has held before is no guess: it was revoked, or has expired.
      if (!this.proven.delete(provenKey) && mayGuess) this.failures.charge(addressBlock(address));
      if (mayRemember) this.refused.set(key, { refusal: outcome, until: now + rememberRefusalMilliseconds });
      throw outcome;
    }
    this.proven.set(provenKey, true);
    const { expiresAt, kind, tenantId } = outcome.caller;
    const end = expiresAt === 0 ? Infinity : expiresAt * 1000;
    const isRefused = kind === 'kubernetes' && tenantId === '';
    const milliseconds = isRefused ? rememberRefusalMilliseconds : rememberMilliseconds;
    if (mayRemember) this.remembered.set(key, { identity: outcome, until: Math.min(now + milliseconds, end) });
    return outcome;
  }

  /** Takes an announcement: the name of what must be asked about anew (revocation-index.ts), or `*`. */
  private forget(key: string): void {
    this.announcements += 1;
    // Whoever asks from here on must not get an answer that was on its way before the announcement.
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

/** ValidateToken's answer as a caller, or as the error that refuses it; `isKey`: the credential is an API key. */
export function identityOf(
  answer: ValidateTokenResponse,
  credentialHash: string,
  isKey = false,
): Identity | KelletError {
  const { grant } = answer;
  if (!answer.valid) return refusalOf(grant?.reason, isKey);
  const kind = callerKinds.get(answer.kind);
  // Without a grant it was not the gateway that was answered.
  if (kind === undefined || !grant) return unauthenticated();
  return {
    rateLimitPerMinute: grant.rateLimitPerMinute,
    caller: {
      kind,
      tenantId: answer.tenantId,
      userId: kind === 'service' ? grant.keyId : answer.userId,
      deviceId: answer.deviceId,
      name: grant.name,
      scopes: new Set(answer.scopes),
      credentialHash,
      sessionId: grant.sessionId,
      ipAllowlist: grant.ipAllowlist,
      expiresAt: answer.expiresAt ? Math.floor(timestampMs(answer.expiresAt) / 1000) : 0,
      ...(grant.credentialId === '' ? {} : { credentialId: grant.credentialId }),
    },
  };
}

/** Only an access token has a refresh token beside it. */
function refusalOf(reason: Reason | undefined, isKey: boolean): KelletError {
  if (reason === Reason.expired && !isKey) {
    return unauthenticated('the token has expired; exchange the refresh token at POST /api/v1/auth/refresh');
  }
  return unauthenticated();
}
