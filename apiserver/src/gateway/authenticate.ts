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
import { readKubernetesToken } from '../auth/kubernetes-token.ts';
import { revocationChannel, sessionPayload } from '../auth/revocations.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/database.ts';
import { KelletError, unauthenticated } from '../platform/errors.ts';
import { internalContext, publicCaller, type Caller, type CallerKind, type Invoker } from '../platform/rpc.ts';
import { BoundedMap } from './bounded-map.ts';

const rememberMilliseconds = 10_000;
const rememberRefusalMilliseconds = 2_000;
const maximumRemembered = 50_000;

/** A caller, and the limits that come with its tenant. */
export interface Identity {
  readonly caller: Caller;
  /** The tenant's requests per minute; 0: the default. */
  readonly rateLimitPerMinute: number;
}

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

type Remembered = { readonly until: number } & ({ readonly identity: Identity } | { readonly refusal: KelletError });

/** Turns credentials into callers. */
export class Authenticator {
  private readonly invoker: Invoker;
  private readonly clock: Clock;
  private readonly remembered = new BoundedMap<string, Remembered>(maximumRemembered);
  private readonly running = new Map<string, Promise<Identity>>();
  /** Raised by every revocation, so that an answer that was under way meanwhile is used once and not remembered. */
  private revocations = 0;
  private isListening = true;
  private readonly openCalls = new Set<{ readonly caller: Caller; readonly check: () => void }>();

  constructor(invoker: Invoker, clock: Clock) {
    this.invoker = invoker;
    this.clock = clock;
  }

  /** Hears revocations from the database; while that connection is lost nothing is remembered. */
  listen(database: Database): void {
    this.isListening = false;
    database.listen(
      [revocationChannel],
      (_channel, payload) => this.forget(payload),
      (lost) => {
        this.isListening = !lost;
        this.forget('*');
      },
    );
  }

  /**
   * Watches the credential of a call that stays open (a stream, a socket, a long poll): `end` is called once when it is
   * revoked or expires. The function that comes back ends the watch.
   */
  watch(credential: string, caller: Caller, address: string, end: () => void): () => void {
    const stop = (): void => {
      clearTimeout(timer);
      this.openCalls.delete(call);
    };
    const check = (): void => {
      this.authenticate(credential, address).catch((error: unknown) => {
        if (!(error instanceof KelletError) || error.code !== 'UNAUTHENTICATED' || !this.openCalls.has(call)) return;
        stop();
        end();
      });
    };
    const call = { caller, check };
    const milliseconds = caller.expiresAt * 1000 - this.clock.now();
    // A timer longer than 2^31 ms fires at once; such a credential outlives any connection.
    const timer =
      caller.expiresAt > 0 && milliseconds < 2 ** 31 ? setTimeout(check, Math.max(0, milliseconds) + 1000) : undefined;
    this.openCalls.add(call);
    return stop;
  }

  /**
   * The identity behind a credential; for a Kubernetes token, in this use of it. Throws UNAUTHENTICATED for one that is missing or does not hold, and whatever the auth
   * service throws when it cannot tell.
   */
  async authenticate(credential: string | undefined, address: string, use: TokenUse = noUse): Promise<Identity> {
    if (credential === undefined) throw unauthenticated('a credential is required');
    if (credential === '' || credential.length > 8192) throw unauthenticated();
    const credentialHash = hash('sha256', credential, 'hex');
    let key = credentialHash;
    let known = this.remembered.get(key);
    const isKubernetes = !known && readKubernetesToken(credential) !== undefined;
    if (isKubernetes) {
      // The cluster's answer is about one namespace and one permission.
      key = hash('sha256', `${credential}\n${use.namespace}\n${use.permission}`, 'hex');
      known = this.remembered.get(key);
    }
    if (known && known.until > this.clock.now()) {
      if ('refusal' in known) throw known.refusal;
      return known.identity;
    }
    let run = this.running.get(key);
    if (!run) {
      const request = { token: credential, ...(isKubernetes ? use : {}) };
      const started = this.validate(request, credentialHash, key, address).finally(() => {
        if (this.running.get(key) === started) this.running.delete(key);
      });
      run = started;
      this.running.set(key, run);
    }
    return run;
  }

  private async validate(
    request: MessageInitShape<typeof ValidateTokenRequestSchema> & { token: string },
    credentialHash: string,
    key: string,
    address: string,
  ): Promise<Identity> {
    const revocations = this.revocations;
    const remember = (entry: Remembered): void => {
      if (this.isListening && this.revocations === revocations) this.remembered.set(key, entry);
    };
    const answer = await this.invoker.unary(
      AuthService.method.validateToken,
      create(ValidateTokenRequestSchema, request),
      internalContext(publicCaller, { address }),
    );
    const now = this.clock.now();
    const outcome = identityOf(answer, credentialHash, request.token.startsWith('sk_live_'));
    if (outcome instanceof KelletError) {
      remember({ refusal: outcome, until: now + rememberRefusalMilliseconds });
      throw outcome;
    }
    const { expiresAt, kind, tenantId } = outcome.caller;
    const end = expiresAt === 0 ? Infinity : expiresAt * 1000;
    const isRefused = kind === 'kubernetes' && tenantId === '';
    const milliseconds = isRefused ? rememberRefusalMilliseconds : rememberMilliseconds;
    remember({ identity: outcome, until: Math.min(now + milliseconds, end) });
    return outcome;
  }

  /** Takes a payload of the revocation channel. */
  private forget(payload: string): void {
    this.revocations += 1;
    // Whoever asks from here on must not get an answer that was on its way before the revocation.
    this.running.clear();
    for (const [credentialHash, entry] of this.remembered) {
      const caller = 'identity' in entry ? entry.identity.caller : undefined;
      if (!caller || isMeant(payload, caller)) this.remembered.delete(credentialHash);
    }
    for (const { caller, check } of [...this.openCalls]) if (isMeant(payload, caller)) check();
  }
}

const isMeant = (payload: string, caller: Caller): boolean =>
  payload === '*' ||
  payload === caller.credentialHash ||
  (caller.sessionId !== '' && payload === sessionPayload(caller.sessionId));

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
  if (!answer.valid) return refusalOf(answer.reason, isKey);
  const kind = callerKinds.get(answer.kind);
  if (kind === undefined) return unauthenticated();
  return {
    rateLimitPerMinute: answer.rateLimitPerMinute,
    caller: {
      kind,
      tenantId: answer.tenantId,
      userId: kind === 'service' ? answer.keyId : answer.userId,
      deviceId: answer.deviceId,
      name: answer.name,
      scopes: new Set(answer.scopes),
      credentialHash,
      sessionId: answer.sessionId,
      ipAllowlist: answer.ipAllowlist,
      expiresAt: answer.expiresAt ? Math.floor(timestampMs(answer.expiresAt) / 1000) : 0,
      ...(answer.credentialId === '' ? {} : { credentialId: answer.credentialId }),
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
