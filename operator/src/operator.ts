// The operator: caches, controllers, the data plane's stream of changes, and the triggers of each controller.
import { type Kind, tenantLabel } from '@kellet/crds';
import { keyText, type KubernetesClient } from '@kellet/kubernetes';
import type { WatchResponse } from '@kellet/proto/ts/kellet/control/v1/control';
import { Cluster, kinds } from './cluster.ts';
import { findCondition } from './conditions.ts';
import { deviceProfileReconciler } from './controllers/device-profile.ts';
import { OtaPackageReconciler } from './controllers/ota-package.ts';
import { OtaRolloutReconciler } from './controllers/ota-rollout.ts';
import { ProvisioningTemplateReconciler } from './controllers/provisioning-template.ts';
import { TenantReconciler } from './controllers/tenant.ts';
import type { ControlClient } from './data-plane.ts';
import { DriftCheck } from './drift.ts';
import { repairDrift } from './drift-repair.ts';
import { type Environment, Reconciler } from './reconciler.ts';
import { type CustomResource, isBeingDeleted, kindOf, type Namespace } from './resources.ts';
import { type Clock, sleep, systemClock } from './runtime/clock.ts';
import { Controller, type Reconcile } from './runtime/controller.ts';
import { EventRecorder } from './runtime/events.ts';
import type { Logger } from './runtime/logger.ts';
import type { Metrics } from './runtime/metrics.ts';
import type { Change } from './runtime/reflector.ts';
import { Turns } from './runtime/turns.ts';
import { SecretAccess } from './secret-access.ts';
import { StatusWriter } from './status-writer.ts';
import { concernsItself, dependentsOf } from './triggers.ts';

/** Interval at which all resources are reconciled, as a precaution. */
const resyncMilliseconds = 10 * 3_600_000;
/** How long to wait for the first connection to the data plane before reconciling without it. */
const patienceMilliseconds = 5000;
/** Delay that coalesces the notifications of a rollout, which come with each report. */
const rolloutNewsMilliseconds = 100;

/** Huge resources that are applied at the same time. */
const hugeAtOnce = 2;

/** Options of an operator. */
export interface OperatorOptions {
  client: KubernetesClient;
  dataPlane: ControlClient;
  logger: Logger;
  metrics: Metrics;
  /** Names this process in Events. */
  identity: string;
  /** The secret shared with the data plane. */
  controlSecret: string;
  /** The operator's own namespace, in which tenants' passwords may be. */
  ownNamespace: string;
  /** ClusterRole for Secrets that the operator binds to itself in tenants' namespaces. */
  tenantRole: string;
  /** Milliseconds between drift checks. */
  driftCheckMilliseconds: number;
  clock?: Clock;
}

/** The caches and controllers. */
export class Operator {
  readonly cluster: Cluster;
  private readonly options: Required<OperatorOptions>;
  private readonly controllers: Readonly<Record<Kind, Controller>>;
  private readonly events: EventRecorder;
  private readonly statuses: StatusWriter;
  private readonly secretAccess: SecretAccess;
  private readonly drift = new DriftCheck();

  constructor(options: OperatorOptions) {
    this.options = { clock: systemClock, ...options };
    const { client, dataPlane, logger, metrics, identity, clock } = this.options;
    this.cluster = new Cluster({ client, clock, logger, metrics, secret: this.options.controlSecret });
    this.statuses = new StatusWriter(client, clock);
    this.events = new EventRecorder({
      client,
      clock,
      logger,
      metrics,
      component: 'kellet-operator',
      instance: identity,
    });
    this.secretAccess = new SecretAccess({ client, clock, role: this.options.tenantRole });
    const environment: Environment = {
      client,
      cluster: this.cluster,
      dataPlane: this.drift.following(dataPlane),
      statuses: this.statuses,
      events: this.events,
      controlSecret: this.options.controlSecret,
      secretAccess: this.secretAccess,
      ownNamespace: this.options.ownNamespace,
      turns: new Turns(hugeAtOnce),
      clock,
    };
    const tenants = new TenantReconciler(environment);
    const profiles = new Reconciler(environment, deviceProfileReconciler);
    const templates = new Reconciler(environment, new ProvisioningTemplateReconciler(environment));
    const packages = new Reconciler(environment, new OtaPackageReconciler(environment));
    const rollouts = new Reconciler(environment, new OtaRolloutReconciler(environment));
    const controller = (kind: Kind, reconcile: Reconcile, concurrency: number): Controller =>
      new Controller({ name: kind.toLowerCase(), reconcile, clock, logger, metrics, concurrency });
    this.controllers = {
      Tenant: controller('Tenant', (key, context) => tenants.reconcile(key, context), 4),
      DeviceProfile: controller('DeviceProfile', (key, context) => profiles.reconcile(key, context), 8),
      ProvisioningTemplate: controller('ProvisioningTemplate', (key, context) => templates.reconcile(key, context), 8),
      OtaPackage: controller('OtaPackage', (key, context) => packages.reconcile(key, context), 8),
      OtaRollout: controller('OtaRollout', (key, context) => rollouts.reconcile(key, context), 8),
    };
  }

  /** Fills the caches and keeps them up to date until the signal aborts. Does not reconcile. */
  async follow(signal: AbortSignal): Promise<void> {
    await this.cluster.run(signal);
  }

  /** Reconciles until the signal aborts. Resolves when the running reconciles have finished. */
  async reconcile(signal: AbortSignal): Promise<void> {
    await Promise.race([this.cluster.synced(), aborted(signal)]);
    if (signal.aborted) return;
    this.cluster.listen({
      onResource: (kind, change) => this.onResource(kind, change),
      onNamespace: (change) => this.onNamespace(change),
    });
    for (const controller of Object.values(this.controllers)) controller.start(signal);
    const connected = Promise.withResolvers<void>();
    const onSynced = (): void => {
      this.addAll();
      connected.resolve();
    };
    const news = this.options.dataPlane.watch({ onSynced, onChange: (message) => this.onNews(message) }, signal);
    // Without the data plane, resources at least report that they wait for it.
    const { clock } = this.options;
    const patience = sleep(clock, patienceMilliseconds, signal).then(() => 'away' as const);
    if ((await Promise.race([connected.promise, patience])) === 'away') this.addAll();
    const resync = this.resync(signal);
    const repair = repairDrift(
      {
        ...this.options,
        check: this.drift,
        cluster: this.cluster,
        intervalMilliseconds: this.options.driftCheckMilliseconds,
        add: ({ kind, key }) => this.controllers[kind].queue.add(key),
      },
      signal,
    );
    await Promise.all(Object.values(this.controllers).map((controller) => controller.stopped()));
    await Promise.all([news, resync, repair, this.events.flush()]);
  }

  private addAll(): void {
    for (const kind of kinds) {
      for (const key of this.cluster.keys(kind)) {
        this.controllers[kind].queue.forget(key);
        this.controllers[kind].queue.add(key);
      }
    }
  }

  private async resync(signal: AbortSignal): Promise<void> {
    const { clock } = this.options;
    while (!signal.aborted) {
      await sleep(clock, resyncMilliseconds * (1 + clock.random() * 0.1), signal);
      if (!signal.aborted) this.addAll();
    }
  }

  private onResource(kind: Kind, change: Change<CustomResource>): void {
    const { namespace = '', name } = change.object.metadata;
    if (change.type === 'deleted') this.statuses.forget(change.object);
    if (concernsItself(change, (object) => this.statuses.isOwnWrite(object))) {
      this.controllers[kind].queue.add(keyText({ namespace, name }));
    }
    for (const target of dependentsOf(this.cluster, change)) this.controllers[target.kind].queue.add(target.key);
    if (kind === 'Tenant') this.onTenant(change);
  }

  /** Reconciles a tenant's resources when its existence, namespace or readiness changes. */
  private onTenant(change: Change<CustomResource>): void {
    const tenant = change.object;
    const facts = (object: CustomResource): string =>
      JSON.stringify([
        object.kind === 'Tenant' && [object.spec.namespace, object.status?.namespace],
        findCondition(object, 'Synced')?.status,
      ]);
    if (change.type === 'updated' && facts(change.previous) === facts(tenant)) return;
    for (const { metadata } of this.cluster.namespacesOf(tenant.metadata.name)) this.addNamespace(metadata.name);
  }

  private onNamespace(change: Change<Namespace>): void {
    const label = ({ metadata }: Namespace): string | undefined => metadata.labels?.[tenantLabel];
    const { object } = change;
    if (change.type === 'deleted') this.secretAccess.forget(object);
    if (change.type === 'updated') {
      const { previous } = change;
      if (label(previous) === label(object) && isBeingDeleted(previous) === isBeingDeleted(object)) return;
    }
    const tenants = new Set([label(object), change.type === 'updated' ? label(change.previous) : undefined]);
    this.addNamespace(object.metadata.name);
    for (const tenant of tenants) {
      if (tenant === undefined) continue;
      this.controllers.Tenant.queue.add(keyText({ namespace: '', name: tenant }));
      // A different namespace may now be the tenant's.
      for (const { metadata } of this.cluster.namespacesOf(tenant)) this.addNamespace(metadata.name);
    }
  }

  private addNamespace(namespace: string): void {
    for (const kind of kinds) {
      if (kind === 'Tenant') continue;
      for (const object of this.cluster.inNamespace(kind, namespace)) {
        this.controllers[kind].queue.add(keyText({ namespace, name: object.metadata.name }));
      }
    }
  }

  private onNews({ kind: controlKind, namespace, name }: WatchResponse): void {
    const kind = kindOf(controlKind);
    if (!kind) return;
    const key = keyText({ namespace, name });
    const { queue } = this.controllers[kind];
    if (kind === 'OtaRollout') queue.addAfter(key, rolloutNewsMilliseconds);
    else queue.add(key);
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
