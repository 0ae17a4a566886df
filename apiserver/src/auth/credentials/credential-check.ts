// Resolves credentials to callers. The only place that decides whether a token or key is valid.
import { timingSafeEqual } from 'node:crypto';
import { intersect } from '../../platform/addresses/address-ranges.ts';
import type { Clock } from '../../platform/clock.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import type { Database } from '../../platform/database/database.ts';
import { isId } from '../../platform/ids.ts';
import { asOwner } from '../../platform/observability/tracing.ts';
import type { Caller } from '../../platform/rpc.ts';
import type { AccessTokens } from '../access-tokens/access-tokens.ts';
import { rightsOf } from '../roles/rights.ts';
import { deviceScopes } from '../roles/roles.ts';
import { credentialHash, isWellFormedKey, looksLikeApiKey } from './api-key-format.ts';
import type { Authentication, RefusalReason } from './authentication.ts';
import { type KeyState, keyStates, mustEnrollFirst, type SessionState, sessionState } from './credential-store.ts';
import { type CredentialType, type DeviceProof, proofHash } from './device-proof.ts';
import type { KubernetesIdentities, KubernetesUse } from './kubernetes-identities.ts';
import { readKubernetesToken } from './kubernetes-token.ts';
import type { LastUsed } from './last-used.ts';
import { stepUpUntil } from './step-up.ts';

/** Maximum keys that one statement reads, and that wait for theirs: as many as there are connections to a port. */
const keysPerLook = 200;
const waitingKeys = 10_000;

/** Whose turn at the database it is to look keys up. No tenant can have this id. */
const owner = 'look-up of keys';

/** Checks credentials against the database on every call. Callers cache the result and evict it on revocation. */
export class CredentialCheck {
  private readonly database: Database;
  private readonly clock: Clock;
  private readonly tokens: AccessTokens;
  private readonly lastUsed: LastUsed;
  private readonly kubernetes: KubernetesIdentities;
  /**
   * Credentials of a type that come at the same time are read together: of a fleet that connects at once, each device would wait
   * for a connection of its own. The tenant is unknown until the key is found.
   */
  private readonly keys = new Batches<Buffer, KeyState | undefined>(
    keysPerLook,
    (type, hashes) => {
      const now = new Date(this.clock.now());
      // Nobody is admitted before: the loops, some of which take long, have other connections.
      return asOwner(owner, () => this.database.systemRead((tx) => keyStates(tx, type as CredentialType, hashes, now)));
    },
    waitingKeys,
  );

  constructor(
    database: Database,
    clock: Clock,
    tokens: AccessTokens,
    lastUsed: LastUsed,
    kubernetes: KubernetesIdentities,
  ) {
    this.database = database;
    this.clock = clock;
    this.tokens = tokens;
    this.lastUsed = lastUsed;
    this.kubernetes = kubernetes;
  }

  /**
   * Resolves a credential. `use` and `address` matter only for Kubernetes tokens. Throws UNAVAILABLE when the database
   * or, for a Kubernetes token, the Kubernetes API cannot be reached, and when too many keys wait to be looked up.
   */
  authenticate(credential: string, use: KubernetesUse, address: string): Promise<Authentication> {
    if (looksLikeApiKey(credential)) return this.key(credential);
    const claimed = readKubernetesToken(credential);
    return claimed ? this.kubernetes.authenticate(credential, claimed, use, address) : this.accessToken(credential);
  }

  private async key(credential: string): Promise<Authentication> {
    const refused = (reason: RefusalReason) => ({ valid: false, reason, credential: 'key' }) as const;
    // Reject guesses and typing errors without a query.
    if (!isWellFormedKey(credential)) return refused('unrecognized');
    const hash = credentialHash(credential);
    const key = await this.keys.add('api_key', hash);
    if (!key || !timingSafeEqual(key.key_hash, hash)) return refused('unrecognized');
    const reason = keyRefusal(key, this.clock.now());
    return reason ? refused(reason) : this.accept(key, hash);
  }

  /** Resolves what the connection of a device has proven. Only the gateway may state that it has. */
  async prove(proof: DeviceProof): Promise<Authentication> {
    const refused = (reason: RefusalReason) =>
      ({ valid: false, reason, credential: proof.kind === 'certificate' ? 'certificate' : 'key' }) as const;
    const hash = proofHash(proof);
    // A certificate is valid because it was issued and recorded here. Its contents are not examined.
    const key = await this.keys.add(proof.kind, hash);
    if (!key) return refused('unrecognized');
    const reason = keyRefusal(key, this.clock.now());
    return reason ? refused(reason) : this.accept(key, hash);
  }

  private accept(key: KeyState, hash: Buffer): Authentication {
    if (key.device_id === null) this.lastUsed.note('api_keys', key.key_id, key.last_used_at);
    else if (key.last_used_at === null) {
      this.lastUsed.noteDevice(key.key_id, { tenantId: key.tenant_id, deviceId: key.device_id });
    }
    return {
      valid: true,
      caller: callerOfKey(key, hash),
      rateLimitPerMinute: key.rate_limit_per_minute,
      keyId: key.key_id,
    };
  }

  private async accessToken(credential: string): Promise<Authentication> {
    const refused = (reason: RefusalReason) => ({ valid: false, reason, credential: 'token' }) as const;
    const token = await this.tokens.verify(credential);
    if (typeof token === 'string') return refused(token);
    if (!isId(token.sessionId)) return refused('unrecognized');
    const session = await this.database.systemRead((tx) => sessionState(tx, token.sessionId));
    // A missing session was deleted together with its user.
    if (!session) return refused('revoked');
    if (session.user_id !== token.userId || (session.tenant_id ?? '') !== token.tenantId)
      return refused('unrecognized');
    const reason = sessionRefusal(session, this.clock.now());
    if (reason) return refused(reason);
    this.lastUsed.note('sessions', session.session_id, session.last_used_at);
    return {
      valid: true,
      caller: callerOfSession(session, credentialHash(credential), token.expiresAt),
      rateLimitPerMinute: session.rate_limit_per_minute ?? 0,
      keyId: '',
    };
  }
}

/** Returns why a stored key is invalid at the given time, or undefined when it is valid. */
export function keyRefusal(
  key: Pick<KeyState, 'revoked' | 'tenant_deleted' | 'tenant_suspended' | 'expires_at'>,
  now: number,
): RefusalReason | undefined {
  if (key.revoked) return 'revoked';
  if (key.expires_at !== null && key.expires_at.getTime() <= now) return 'expired';
  return tenantRefusal(key);
}

/** Returns why the access tokens of a session are invalid at the given time, or undefined when they are valid. */
function sessionRefusal(
  session: Pick<SessionState, 'revoked' | 'tenant_deleted' | 'tenant_suspended' | 'user_disabled' | 'expires_at'>,
  now: number,
): RefusalReason | undefined {
  if (session.user_disabled) return 'disabled';
  if (session.revoked || session.expires_at.getTime() <= now) return 'revoked';
  return tenantRefusal(session);
}

/** Returns why a tenant's valid credentials are refused, or undefined if they are not. */
const tenantRefusal = (
  holder: Pick<KeyState, 'tenant_deleted' | 'tenant_suspended'>,
): 'deleted' | 'suspended' | undefined => {
  if (holder.tenant_deleted) return 'deleted';
  return holder.tenant_suspended ? 'suspended' : undefined;
};

function callerOfKey(key: KeyState, hash: Buffer): Caller {
  const isDevice = key.device_id !== null;
  return {
    kind: isDevice ? 'device' : 'service',
    tenantId: key.tenant_id,
    userId: isDevice ? '' : key.key_id,
    deviceId: key.device_id ?? '',
    customerId: '',
    name: key.device_id ?? key.name,
    scopes: isDevice ? deviceScopes : new Set(key.scopes),
    limitedGrants: [],
    credentialHash: hash.toString('hex'),
    sessionId: '',
    // A tenant's allowlist restricts its users and integrations, not its devices.
    ipAllowlist: isDevice ? key.ip_allowlist : intersect(key.tenant_ip_allowlist, key.ip_allowlist),
    expiresAt: key.expires_at === null ? 0 : Math.floor(key.expires_at.getTime() / 1000),
  };
}

function callerOfSession(session: SessionState, hash: Buffer, expiresAt: number): Caller {
  const mustEnroll = mustEnrollFirst(session);
  return {
    kind: session.tenant_id === null ? 'platform' : 'user',
    tenantId: session.tenant_id ?? '',
    userId: session.user_id,
    deviceId: '',
    customerId: session.customer_id ?? '',
    name: session.email,
    ...(mustEnroll ? rightsOf(null, []) : rightsOf(session.role, session.grants)),
    credentialHash: hash.toString('hex'),
    sessionId: session.session_id,
    ipAllowlist: session.tenant_ip_allowlist ?? [],
    expiresAt,
    ...(mustEnroll ? { mustEnroll } : {}),
    ...stepUpUntil(session),
  };
}
