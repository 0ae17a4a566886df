// The operator's right to a tenant's Secrets: none in the cluster at large, only in the namespaces that are tenants'. In each of
// them it binds a ClusterRole, which alone it may bind, to itself.
//
// RBAC: rolebindings of the ClusterRole's name: create, patch; the ClusterRole itself: bind. Who it is and what it may do
// (SelfSubjectReview, SelfSubjectAccessReview) every authenticated caller may ask.
import { apiVersion, createdByLabel, operatorFieldManager, type Tenant } from '@kellet/crds';
import type { Namespace } from './resources.ts';
import { sleep, type Clock } from './runtime/clock.ts';
import type { KubernetesClient } from './runtime/kubernetes-client.ts';
import { isForbidden } from './runtime/kubernetes-error.ts';
import type { KubernetesObject, Resource } from './runtime/resource.ts';

const roleBindings: Resource = {
  group: 'rbac.authorization.k8s.io',
  version: 'v1',
  plural: 'rolebindings',
  kind: 'RoleBinding',
  namespaced: true,
};
const selfReviews: Resource = {
  group: 'authentication.k8s.io',
  version: 'v1',
  plural: 'selfsubjectreviews',
  kind: 'SelfSubjectReview',
  namespaced: false,
};
const selfAccessReviews: Resource = {
  group: 'authorization.k8s.io',
  version: 'v1',
  plural: 'selfsubjectaccessreviews',
  kind: 'SelfSubjectAccessReview',
  namespaced: false,
};

/** How long the API server may take to honour a new binding, and how often it is asked. */
const patienceMs = 5000;
const askAgainMs = 50;

const never = new AbortController().signal;

interface Subject {
  kind: 'ServiceAccount' | 'User';
  name: string;
  namespace?: string;
  apiGroup?: string;
}

/** Returns the subject of a binding for the user that the API server knows a caller as. */
export function toSubject(username: string): Subject {
  const [, namespace, name] = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(username) ?? [];
  if (namespace !== undefined && name !== undefined) return { kind: 'ServiceAccount', name, namespace };
  return { kind: 'User', name: username, apiGroup: 'rbac.authorization.k8s.io' };
}

/** Returns the binding that gives the subject the role in a tenant's namespace. It goes with the Tenant. */
export function toRoleBinding(tenant: Tenant, namespace: string, role: string, subject: Subject): KubernetesObject {
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

/** Gives the operator its rights in tenants' namespaces. */
export class SecretAccess {
  readonly #client: Pick<KubernetesClient, 'create' | 'apply'>;
  readonly #clock: Clock;
  readonly #role: string;
  #subject: Promise<Subject> | undefined;
  /** By uid of the namespace: what is under way or done. */
  readonly #granted = new Map<string, Promise<void>>();

  /** @param role name of the ClusterRole */
  constructor(options: { client: Pick<KubernetesClient, 'create' | 'apply'>; clock: Clock; role: string }) {
    this.#client = options.client;
    this.#clock = options.clock;
    this.#role = options.role;
  }

  /** Resolves with what the work with the namespace's Secrets comes to. When they are refused, `ensure` asks anew. */
  async using<T>(namespace: Namespace, work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      // Somebody took the binding away.
      if (isForbidden(error)) this.forget(namespace);
      throw error;
    }
  }

  /** Resolves once the operator may use the Secrets of the tenant's namespace. Asks once for each namespace. */
  async ensure(tenant: Tenant, { metadata: { name, uid = name } }: Namespace): Promise<void> {
    let granted = this.#granted.get(uid);
    if (!granted) {
      granted = this.#grant(tenant, name);
      this.#granted.set(uid, granted);
      granted.catch(() => this.#granted.delete(uid));
    }
    await granted;
  }

  /** Has `ensure` ask anew. */
  forget({ metadata: { name, uid = name } }: Namespace): void {
    this.#granted.delete(uid);
  }

  async #grant(tenant: Tenant, namespace: string): Promise<void> {
    const subject = await this.#self();
    const binding = toRoleBinding(tenant, namespace, this.#role, subject);
    await this.#client.apply(roleBindings, binding, { fieldManager: operatorFieldManager, force: true });
    const deadline = this.#clock.monotonic() + patienceMs;
    // The API server's authorizer learns of the binding a moment later.
    while (!(await this.#isAllowed(namespace))) {
      if (this.#clock.monotonic() > deadline) {
        throw new Error(`the operator may not read Secrets in namespace ${namespace}: see ClusterRole ${this.#role}`);
      }
      await sleep(this.#clock, askAgainMs, never);
    }
  }

  #self(): Promise<Subject> {
    this.#subject ??= this.#client
      .create<KubernetesObject & { status?: { userInfo?: { username?: string } } }>(selfReviews, {
        apiVersion: 'authentication.k8s.io/v1',
        kind: 'SelfSubjectReview',
        metadata: { name: '' },
      })
      .then(({ status }) => toSubject(status?.userInfo?.username ?? ''));
    this.#subject.catch(() => (this.#subject = undefined));
    return this.#subject;
  }

  async #isAllowed(namespace: string): Promise<boolean> {
    const review: KubernetesObject & { spec: object; status?: { allowed?: boolean } } = {
      apiVersion: 'authorization.k8s.io/v1',
      kind: 'SelfSubjectAccessReview',
      metadata: { name: '' },
      spec: { resourceAttributes: { namespace, verb: 'get', version: 'v1', resource: 'secrets' } },
    };
    return (await this.#client.create(selfAccessReviews, review)).status?.allowed === true;
  }
}
