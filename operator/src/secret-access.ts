// Grants the operator access to the Secrets of tenants' namespaces; it has none in the cluster at large. In each
// namespace it binds a ClusterRole, the only one that it may bind, to itself.
//
// RBAC: rolebindings with the ClusterRole's name: create, patch; the ClusterRole itself: bind. Every authenticated
// caller may create SelfSubjectReviews and SelfSubjectAccessReviews.
import { apiVersion, createdByLabel, operatorFieldManager, type Tenant } from '@kellet/crds';
import { failureOf, type KubernetesClient, type KubernetesObject, resourceFor, secrets } from '@kellet/kubernetes';
import type { Namespace, Secret } from './resources.ts';
import { type Clock, sleep } from './runtime/clock.ts';

const roleBindings = resourceFor('rbac.authorization.k8s.io/v1', 'RoleBinding');
const selfReviews = resourceFor('authentication.k8s.io/v1', 'SelfSubjectReview', false);
const selfAccessReviews = resourceFor('authorization.k8s.io/v1', 'SelfSubjectAccessReview', false);

/** How long to wait until a new binding takes effect, and how often to check, in milliseconds. */
const patienceMilliseconds = 5000;
const askAgainMilliseconds = 50;

const never = new AbortController().signal;

interface Subject {
  kind: 'ServiceAccount' | 'User';
  name: string;
  namespace?: string;
  apiGroup?: string;
}

/** Returns the subject of a binding for a user name. */
export function toSubject(username: string): Subject {
  const [, namespace, name] = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(username) ?? [];
  if (namespace !== undefined && name !== undefined) return { kind: 'ServiceAccount', name, namespace };
  return { kind: 'User', name: username, apiGroup: 'rbac.authorization.k8s.io' };
}

/**
 * Returns the binding of the role to the subject in a tenant's namespace. It is owned by the Tenant and deleted with
 * it.
 */
function toRoleBinding(tenant: Tenant, namespace: string, role: string, subject: Subject): KubernetesObject {
  const { name, uid = '' } = tenant.metadata;
  const binding = {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'RoleBinding',
    metadata: {
      name: role,
      namespace,
      labels: { [createdByLabel]: 'operator' },
      ownerReferences: [{ apiVersion, kind: 'Tenant', name, uid, controller: true, blockOwnerDeletion: false }],
    },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: role },
    subjects: [subject],
  };
  return binding;
}

/** Bytes of a Secret that is read, at most: a key or a password needs few, and many at once would take much memory. */
const secretBytes = 128 * 1024;

/** Names that a Secret can have. Others come from specs too: `..` would lead to another object, `a/b` to a permission that nobody has. */
const secretName = /^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$/;

/** Reads a Secret. Returns undefined if it does not exist, and `tooLarge` if it is larger than any that is needed. */
export async function findSecret(
  client: Pick<KubernetesClient, 'find'>,
  namespace: string,
  name: string,
): Promise<Secret | 'tooLarge' | undefined> {
  if (!secretName.test(name)) return undefined;
  try {
    return await client.find<Secret>(secrets, namespace, name, undefined, secretBytes);
  } catch (error) {
    if (failureOf(error) === 'tooLarge') return 'tooLarge';
    throw error;
  }
}

/** The problem of such a Secret, behind its name. */
export const secretTooLarge = `is larger than ${secretBytes / 1024} KiB`;

/** Grants the operator its permissions in tenants' namespaces. */
export class SecretAccess {
  private readonly client: Pick<KubernetesClient, 'create' | 'apply'>;
  private readonly clock: Clock;
  private readonly role: string;
  private subject: Promise<Subject> | undefined;
  /** Pending and completed grants, by uid of the namespace. */
  private readonly granted = new Map<string, Promise<void>>();

  /** `role` is the name of the ClusterRole. */
  constructor(options: { client: Pick<KubernetesClient, 'create' | 'apply'>; clock: Clock; role: string }) {
    this.client = options.client;
    this.clock = options.clock;
    this.role = options.role;
  }

  /**
   * Returns the result of work with the namespace's Secrets. If access was denied, the next `ensure` grants it again.
   */
  async using<T>(namespace: Namespace, work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      // The binding was removed.
      if (failureOf(error) === 'forbidden') this.forget(namespace);
      throw error;
    }
  }

  /** Resolves once the operator has access to the Secrets of the tenant's namespace. Grants it once per namespace. */
  async ensure(tenant: Tenant, { metadata: { name, uid = name } }: Namespace): Promise<void> {
    let granted = this.granted.get(uid);
    if (!granted) {
      granted = this.grant(tenant, name);
      this.granted.set(uid, granted);
      granted.catch(() => this.granted.delete(uid));
    }
    await granted;
  }

  /** Makes the next `ensure` grant access again. */
  forget({ metadata: { name, uid = name } }: Namespace): void {
    this.granted.delete(uid);
  }

  private async grant(tenant: Tenant, namespace: string): Promise<void> {
    const subject = await this.self();
    const binding = toRoleBinding(tenant, namespace, this.role, subject);
    await this.client.apply(roleBindings, binding, { fieldManager: operatorFieldManager, force: true });
    const deadline = this.clock.monotonic() + patienceMilliseconds;
    // The API server's authorizer sees the binding with a short delay.
    while (!(await this.isAllowed(namespace))) {
      if (this.clock.monotonic() > deadline) {
        throw new Error(
          `the operator is not allowed to read Secrets in namespace ${namespace}: check ClusterRole ${this.role}`,
        );
      }
      await sleep(this.clock, askAgainMilliseconds, never);
    }
  }

  private self(): Promise<Subject> {
    this.subject ??= this.client
      .create<KubernetesObject & { status?: { userInfo?: { username?: string } } }>(selfReviews, {
        apiVersion: 'authentication.k8s.io/v1',
        kind: 'SelfSubjectReview',
        metadata: { name: '' },
      })
      .then(({ status }) => toSubject(status?.userInfo?.username ?? ''));
    this.subject.catch(() => (this.subject = undefined));
    return this.subject;
  }

  private async isAllowed(namespace: string): Promise<boolean> {
    const review: KubernetesObject & { spec: object; status?: { allowed?: boolean } } = {
      apiVersion: 'authorization.k8s.io/v1',
      kind: 'SelfSubjectAccessReview',
      metadata: { name: '' },
      spec: { resourceAttributes: { namespace, verb: 'get', version: 'v1', resource: 'secrets' } },
    };
    return (await this.client.create(selfAccessReviews, review)).status?.allowed === true;
  }
}
