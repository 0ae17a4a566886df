// Kubernetes identities: the cluster resolves tokens (TokenReview) and decides what their users may do in the tenant's
// namespace (SubjectAccessReview), so that RBAC alone grants permissions.
import { group, version } from '@kellet/crds';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import type { Clock } from '../../platform/clock.ts';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { Tally } from '../../platform/concurrency/tally.ts';
import type { Database } from '../../platform/database/database.ts';
import { resourceExhausted } from '../../platform/errors.ts';
import type { KubernetesApi } from '../../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { tenantOfNamespace } from '../../policies/tenant-reader.ts';
import { credentialHash } from './api-key-format.ts';
import type { Authentication } from './authentication.ts';
import { ClusterKeys } from './cluster-keys.ts';
import {
  type ClaimedKubernetesToken,
  kubernetesAudience,
  type KubernetesPermission,
  namespaceOfServiceAccount,
  parsePermission,
} from './kubernetes-token.ts';

/** Namespace and permission for which a token is used; both may be empty. */
export interface KubernetesUse {
  /** Empty: the namespace of the token's service account. */
  readonly namespace: string;
  /** In the form of Access.kubernetes_permission. */
  readonly permission: string;
}

/** A user as TokenReview returns it and SubjectAccessReview takes it. */
interface KubernetesUser {
  readonly username?: string;
  readonly uid?: string;
  readonly groups?: readonly string[];
  readonly extra?: Readonly<Record<string, readonly string[]>>;
}

interface TokenReviewStatus {
  readonly authenticated?: boolean;
  readonly user?: KubernetesUser;
  readonly audiences?: readonly string[];
}

interface SubjectAccessReviewStatus {
  readonly allowed?: boolean;
  readonly reason?: string;
  readonly evaluationError?: string;
}

/**
 * Maximum concurrent reviews, and those that wait: tokens must not exhaust the connections to the API server. The namespaces of
 * service accounts take turns, because a token can be used in another one each time, so that nothing is remembered.
 */
const reviewsAtOnce = { total: 4, perOwner: 2, waitingPerOwner: 32, waiting: 128 };
/** Maximum concurrent tokens of one address (IPv6: /64). */
const maxPerAddress = 32;

/** Addresses inside the pod: requests through the API server's port-forward, which RBAC has authorised. */
const loopback = ['127.0.0.0/8', '::1/128'];

const credentialIdExtra = 'authentication.kubernetes.io/credential-id';

/** Resolves tokens recognised by {@link readKubernetesToken}, asking the cluster each time: callers cache. */
export class KubernetesIdentities {
  private readonly database: Database;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly api: Pick<KubernetesApi, 'review'>;
  private readonly keys: ClusterKeys;
  private readonly asking = new Tally();
  private readonly reviews = new FairSlots({
    ...reviewsAtOnce,
    refusal: () => resourceExhausted('too many tokens wait for their review', 1),
  });

  constructor(database: Database, clock: Clock, logger: Logger, api: Pick<KubernetesApi, 'review' | 'signingKeys'>) {
    this.database = database;
    this.clock = clock;
    this.logger = logger;
    this.api = api;
    this.keys = new ClusterKeys(api, clock, logger);
  }

  /**
   * Resolves a token to a caller: in the tenant of the namespace if the user holds the permission there, otherwise
   * without a tenant, so that the result reveals no tenant and counts against no tenant's rate limit. Tokens that the
   * cluster's known keys did not sign are rejected without a review. Throws UNAVAILABLE when the Kubernetes API or the
   * database is unavailable, RESOURCE_EXHAUSTED when too many tokens wait for review, in all or of the address.
   */
  async authenticate(
    token: string,
    claimed: ClaimedKubernetesToken,
    use: KubernetesUse,
    address: string,
  ): Promise<Authentication> {
    const block = addressBlock(address);
    if (this.asking.of(block) >= maxPerAddress)
      throw resourceExhausted('too many tokens of this address wait for their review', 1);
    const leave = this.asking.enter(block);
    try {
      return await this.judge({ token, claimed, block }, use);
    } finally {
      leave();
    }
  }

  private async judge(
    { token, claimed, block }: { token: string; claimed: ClaimedKubernetesToken; block: string },
    use: KubernetesUse,
  ): Promise<Authentication> {
    const refused = (reason: 'expired' | 'unrecognized') =>
      ({ valid: false, reason, credential: 'kubernetes' }) as const;
    if (claimed.expiresAt * 1000 <= this.clock.now()) return refused('expired');
    const judgement = await this.keys.judge(token);
    if (judgement === 'expired') return refused('expired');
    if (judgement === 'forged') return refused('unrecognized');
    const review: Review = (apiVersion, kind, spec) =>
      // What a token claims that was not verified may be anything.
      this.reviews.run(judgement === 'signed' ? `namespace ${claimed.namespace}` : block, () =>
        this.api.review(apiVersion, kind, spec),
      );
    const user = await userOf(review, token);
    if (!user?.username) return refused('unrecognized');
    const namespace = use.namespace || namespaceOfServiceAccount(user.username);
    const permission = parsePermission(use.permission);
    const tenant = permission && (await this.database.systemRead((tx) => tenantOfNamespace(tx, namespace)));
    const isGranted = tenant !== undefined && (await mayUse(review, user, namespace, permission!));
    const credentialId = user.extra?.[credentialIdExtra]?.[0] ?? '';
    if (permission && !isGranted) {
      const about = { user: user.username, credential_id: credentialId, namespace, permission: use.permission };
      this.logger.info({ audit: 'kubernetes', ...about, has_tenant: tenant !== undefined }, 'refused');
    }
    if (isGranted && tenant.deleted) return { valid: false, reason: 'deleted', credential: 'kubernetes' };
    if (isGranted && tenant.suspended) return { valid: false, reason: 'suspended', credential: 'kubernetes' };
    const ipAllowlist = isGranted ? tenant.ip_allowlist : [];
    return {
      valid: true,
      caller: {
        kind: 'kubernetes',
        tenantId: isGranted ? tenant.tenant_id : '',
        userId: '',
        deviceId: '',
        customerId: '',
        limitedGrants: [],
        name: user.username,
        scopes: new Set(isGranted ? [use.permission] : []),
        credentialHash: credentialHash(token).toString('hex'),
        sessionId: '',
        ipAllowlist: ipAllowlist.length > 0 ? [...ipAllowlist, ...loopback] : [],
        expiresAt: claimed.expiresAt,
        credentialId,
      },
      rateLimitPerMinute: isGranted ? tenant.rate_limit_per_minute : 0,
      keyId: '',
    };
  }
}

/** Asks the cluster, in turn. */
type Review = <Status>(
  apiVersion: string,
  kind: 'TokenReview' | 'SubjectAccessReview',
  spec: object,
) => Promise<Status>;

/**
 * Returns the user of a token, or undefined if the cluster did not issue it, has revoked it, or issued it for another
 * audience.
 */
async function userOf(review: Review, token: string): Promise<KubernetesUser | undefined> {
  const status = await review<TokenReviewStatus>('authentication.k8s.io/v1', 'TokenReview', {
    token,
    audiences: [kubernetesAudience],
  });
  // An API server without support for audiences returns none; its result is then for its own audience.
  const isMeantForUs = status.authenticated === true && (status.audiences ?? []).includes(kubernetesAudience);
  return isMeantForUs ? status.user : undefined;
}

async function mayUse(
  review: Review,
  user: KubernetesUser,
  namespace: string,
  permission: KubernetesPermission,
): Promise<boolean> {
  const status = await review<SubjectAccessReviewStatus>('authorization.k8s.io/v1', 'SubjectAccessReview', {
    user: user.username,
    uid: user.uid,
    groups: user.groups,
    extra: user.extra,
    resourceAttributes: { group, version, namespace, ...permission },
  });
  return status.allowed === true;
}
