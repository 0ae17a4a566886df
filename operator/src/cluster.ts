// The operator's cache of the cluster: watched copies of its kinds and of namespaces, indexed for the controllers.
import { type Kind, type OtaPackage, type OtaRollout, plurals, tenantLabel } from '@kellet/crds';
import { customResources, keyText, type KubernetesClient, namespaces, type ObjectKey } from '@kellet/kubernetes';
import { firstOfTypes, precedenceOf } from './controllers/rollout-precedence.ts';
import { keptPart } from './large-resources.ts';
import { type CustomResource, isBeingDeleted, type Namespace, type ObjectOf } from './resources.ts';
import type { Clock } from './runtime/clock.ts';
import type { Logger } from './runtime/logger.ts';
import type { Metrics } from './runtime/metrics.ts';
import { type Change, Reflector } from './runtime/reflector.ts';
import { Turns } from './runtime/turns.ts';
import { chooseNamespace, decideTenancy, type Tenancy } from './tenancy.ts';
import { UnfinishedRollouts } from './unfinished-rollouts.ts';

/** Every kind of custom resource. */
export const kinds = Object.keys(plurals) as Kind[];

/** Receives each change after the cache has been updated. */
export interface ClusterListener {
  onResource: (kind: Kind, change: Change<CustomResource>) => void;
  onNamespace: (change: Change<Namespace>) => void;
}

/** Options of a cluster cache. */
export interface ClusterOptions {
  client: Pick<KubernetesClient, 'list' | 'watch'>;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  /** The operator's secret, which proves that it created a namespace. */
  secret: string;
}

/** Cache of watched objects. */
export class Cluster {
  private readonly reflectors = new Map<Kind, Reflector<CustomResource>>();
  private readonly namespaces: Reflector<Namespace>;
  /** Keys by kind and namespace. */
  private readonly byNamespace = new Map<string, Set<string>>();
  private readonly byTenant = new Map<string, Set<string>>();
  private readonly unfinished = new UnfinishedRollouts();
  /** Those that others wait for, by namespace and profile, until a change of the namespace concerns them. */
  private readonly first = new Map<string, Map<string, readonly OtaRollout[]>>();
  private readonly secret: string;
  private listener: ClusterListener | undefined;

  constructor({ secret, ...options }: ClusterOptions) {
    this.secret = secret;
    // A page of large resources takes much memory.
    const common = { ...options, turns: new Turns(1) };
    for (const kind of kinds) {
      const onChange = (change: Change<CustomResource>): void => {
        this.index(kind, change);
        this.listener?.onResource(kind, change);
      };
      this.reflectors.set(
        kind,
        new Reflector<CustomResource>({ ...common, resource: customResources[kind], keep: keptPart, onChange }),
      );
    }
    this.namespaces = new Reflector<Namespace>({
      ...common,
      resource: namespaces,
      onChange: (change) => {
        this.indexNamespace(change);
        this.listener?.onNamespace(change);
      },
    });
  }

  /** Watches everything until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([...this.reflectors.values(), this.namespaces].map((reflector) => reflector.run(signal)));
  }

  /** Resolves when all initial lists are complete. */
  async synced(): Promise<void> {
    await Promise.all([...this.reflectors.values(), this.namespaces].map((reflector) => reflector.synced));
  }

  /** Sets the listener for further changes. Existing objects are available through `keys`. */
  listen(listener: ClusterListener): void {
    this.listener = listener;
  }

  /**
   * Throws if there has been no contact with the API server for longer than a watch may be silent. `now` is monotonic
   * time.
   */
  check(now: number): void {
    for (const [kind, reflector] of this.reflectors) {
      if (reflector.lastContact === undefined) throw new Error(`${plurals[kind]} have not been listed yet`);
      if (now - reflector.lastContact > 180_000)
        throw new Error(`no contact with the watch of ${plurals[kind]} for three minutes`);
    }
  }

  /** Returns the cached object, of which it has only a part if it is large (large-resources.ts), or undefined. */
  get<K extends Kind>(kind: K, key: ObjectKey): ObjectOf[K] | undefined {
    return this.reflectors.get(kind)!.get(keyText(key)) as ObjectOf[K] | undefined;
  }

  /** Returns the keys of all objects of a kind. */
  keys(kind: Kind): Iterable<string> {
    return this.reflectors.get(kind)!.keys();
  }

  /** Yields all objects of a kind in a namespace. */
  *inNamespace<K extends Kind>(kind: K, namespace: string): Generator<ObjectOf[K]> {
    const reflector = this.reflectors.get(kind)!;
    for (const key of this.byNamespace.get(`${kind}/${namespace}`) ?? []) {
      const object = reflector.get(key);
      if (object) yield object as ObjectOf[K];
    }
  }

  /** Returns the rollouts of a profile that others of theirs may have to wait for (rollout-precedence.ts): few, however many wait. */
  firstRollouts(namespace: string, profile: string): Iterable<OtaRollout> {
    const ofNamespace = this.first.get(namespace) ?? new Map<string, readonly OtaRollout[]>();
    this.first.set(namespace, ofNamespace);
    let first = ofNamespace.get(profile);
    if (!first) {
      const typeOf = (name: string) => this.get('OtaPackage', { namespace, name })?.spec.type;
      first = [...firstOfTypes(this.unfinishedRollouts(namespace, profile), typeOf)];
      ofNamespace.set(profile, first);
    }
    return first;
  }

  private *unfinishedRollouts(namespace: string, profile: string): Generator<OtaRollout> {
    const reflector = this.reflectors.get('OtaRollout')!;
    for (const key of this.unfinished.ofProfile(namespace, profile)) {
      const object = reflector.get(key);
      if (object) yield object as OtaRollout;
    }
  }

  /** Returns the cached namespace, or undefined. */
  namespace(name: string): Namespace | undefined {
    return this.namespaces.get(keyText({ namespace: '', name }));
  }

  /** Returns the namespaces with a tenant's label. */
  namespacesOf(tenantId: string): Namespace[] {
    return [...(this.byTenant.get(tenantId) ?? [])].flatMap((name) => this.namespace(name) ?? []);
  }

  /** Returns the namespace that belongs to a tenant, or undefined. */
  chosenNamespace(tenantId: string): Namespace | undefined {
    const tenant = this.get('Tenant', { namespace: '', name: tenantId });
    return tenant && chooseNamespace(tenant, this.namespacesOf(tenantId), this.secret);
  }

  /** Returns the tenant of a namespace, or why it has none. */
  tenancyOf(name: string): Tenancy {
    const namespace = this.namespace(name);
    const tenantId = namespace?.metadata.labels?.[tenantLabel] ?? '';
    const tenant = this.get('Tenant', { namespace: '', name: tenantId });
    return decideTenancy({ namespace, tenantExists: tenant !== undefined, chosen: this.chosenNamespace(tenantId) });
  }

  /**
   * Returns the tenant whose status records the namespace, regardless of the namespace's current label. One that was made again is
   * not the recorded one.
   */
  recordedTenant(namespace: string): string | undefined {
    const uid = this.namespace(namespace)?.metadata.uid;
    for (const name of this.keys('Tenant')) {
      const tenant = this.reflectors.get('Tenant')!.get(name) as ObjectOf['Tenant'] | undefined;
      if (tenant?.status?.namespace !== namespace) continue;
      const { namespaceUid = uid } = tenant.status;
      if (uid === undefined || namespaceUid === uid) return tenant.metadata.name;
    }
    return undefined;
  }

  /** Reports whether a namespace is being deleted or does not exist. */
  isTerminating(name: string): boolean {
    const namespace = this.namespace(name);
    return !namespace || isBeingDeleted(namespace);
  }

  private index(kind: Kind, event: Change<CustomResource>): void {
    const { type, object } = event;
    const { namespace = '', name } = object.metadata;
    if (kind === 'OtaRollout') this.unfinished.follow(event as Change<OtaRollout>);
    if (changesPrecedence(event)) this.first.delete(namespace);
    change(this.byNamespace, `${kind}/${namespace}`, keyText({ namespace, name }), type !== 'deleted');
  }

  private indexNamespace(event: Change<Namespace>): void {
    const { name, labels } = event.object.metadata;
    const before = event.type === 'updated' ? event.previous.metadata.labels?.[tenantLabel] : undefined;
    const after = labels?.[tenantLabel];
    if (before && before !== after) change(this.byTenant, before, name, false);
    if (after) change(this.byTenant, after, name, event.type !== 'deleted');
  }
}

function changesPrecedence(event: Change<CustomResource>): boolean {
  const { type, object } = event;
  if (object.kind === 'OtaRollout') {
    return type !== 'updated' || precedenceOf(event.previous as OtaRollout) !== precedenceOf(object);
  }
  if (object.kind !== 'OtaPackage') return false;
  return type !== 'updated' || (event.previous as OtaPackage).spec.type !== object.spec.type;
}

function change(index: Map<string, Set<string>>, key: string, entry: string, present: boolean): void {
  const entries = index.get(key) ?? new Set();
  if (present) entries.add(entry);
  else entries.delete(entry);
  if (entries.size > 0) index.set(key, entries);
  else index.delete(key);
}
