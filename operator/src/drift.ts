// Detects drift by comparing the data plane's working copies with what was applied, a page at a time, without reading either
// in full. A working copy that differs or is missing is applied again; one without a resource is removed.
//
// The data plane returns a digest with each Apply, and those of a page of working copies in one cheap call. Applying again
// updates the expected digest, so a difference that cannot be repaired is tried only once.
import type { Kind } from '@kellet/crds';
import { keyText } from '@kellet/kubernetes';
import {
  type ApplyRequest,
  type ApplyResponse,
  ObjectMeta,
  type RemoveRequest,
} from '@kellet/proto/ts/kellet/control/v1/control';
import type { DataPlane, WorkingCopyPage } from './data-plane.ts';
import { controlKinds, kindOf } from './resources.ts';
import type { Target } from './triggers.ts';

/** A working copy without a resource. */
export interface Orphan {
  kind: Exclude<Kind, 'Tenant'>;
  tenantId: string;
  namespace: string;
  name: string;
}

/** Result of the comparison of a page. */
export interface Drift {
  /** Resources whose working copy differs from what was applied. */
  changed: Target[];
  /** Resources without a working copy; known with the last page. */
  missing: Target[];
  /** Working copies without a resource in {@link orphanTurns} consecutive turns. */
  orphans: Orphan[];
  /** Tenants without a resource in as many. */
  abandoned: string[];
}

/** Number of consecutive turns through all working copies without a resource after which a working copy is an orphan. */
export const orphanTurns = 10;

/** Records what was applied and compares it with the data plane. Comparisons are numbered; each is of a page. */
export class DriftCheck {
  /**
   * Digests by `kind key`, each with the number of the comparison that preceded it, and of the last that saw the copy, and with the id
   * of a rollout.
   */
  private readonly applied = new Map<string, { digest: bigint; since: number; seen: number; rolloutId?: string }>();
  /** `kind key` of the resource of each rollout, by rollout id. */
  private readonly rollouts = new Map<string, string>();
  /** Number of consecutive turns without a resource, by `kind key`, and the last comparison that saw the copy. */
  private readonly alone = new Map<string, { times: number; seen: number }>();
  private comparison = 0;
  /** The first comparison of the turn. */
  private turn = 0;

  /** Wraps a data plane to record what is applied and removed through it. */
  following(dataPlane: DataPlane): DataPlane {
    return {
      apply: async (request) => {
        const response = await dataPlane.apply(request);
        if (!request.dry_run) this.remember(request, response);
        return response;
      },
      remove: async (request) => {
        const response = await dataPlane.remove(request);
        if (!response.refusal) this.forget(request);
        return response;
      },
      advanceRollout: async (request) => {
        const response = await dataPlane.advanceRollout(request);
        if (response.observed?.phase === 'completed') this.end(request.rollout_id);
        return response;
      },
    };
  }

  /** Begins the comparison of a page, the first of a turn or not, before it is read. Later Applies are not compared. */
  begin(isFirst: boolean): void {
    this.comparison += 1;
    if (isFirst) this.turn = this.comparison;
  }

  /** Compares what was applied with a page of the working copies. `exists` reports whether the cluster has the resource. */
  compare({ copies, nextPageToken }: WorkingCopyPage, exists: (kind: Kind, key: string) => boolean): Drift {
    const drift: Drift = { changed: [], missing: [], orphans: [], abandoned: [] };
    for (const { kind: number, tenant_id, namespace, name, digest } of copies) {
      const kind = kindOf(number);
      if (!kind) continue;
      const key = keyText({ namespace, name });
      const id = `${kind} ${key}`;
      const applied = this.applied.get(id);
      if (applied) {
        if (applied.since < this.comparison && applied.digest !== digest) drift.changed.push({ kind, key });
        applied.seen = this.comparison;
      }
      if (exists(kind, key)) {
        this.alone.delete(id);
        continue;
      }
      const times = (this.alone.get(id)?.times ?? 0) + 1;
      this.alone.set(id, { times: times % orphanTurns, seen: this.comparison });
      if (times < orphanTurns) continue;
      // A tenant is removed only by deleting its resource, because this cannot be undone.
      if (kind === 'Tenant') drift.abandoned.push(tenant_id);
      else drift.orphans.push({ kind, tenantId: tenant_id, namespace, name });
    }
    if (nextPageToken === '') drift.missing.push(...this.endTurn(exists));
    return drift;
  }

  /** Forgets what no page of the turn has shown, and returns what of it the cluster has. */
  private endTurn(exists: (kind: Kind, key: string) => boolean): Target[] {
    for (const [id, { seen }] of this.alone) if (seen < this.turn) this.alone.delete(id);
    const missing: Target[] = [];
    for (const [id, { since, seen }] of this.applied) {
      if (seen >= this.turn || since >= this.turn) continue;
      this.drop(id);
      const at = id.indexOf(' ');
      const [kind, key] = [id.slice(0, at) as Kind, id.slice(at + 1)];
      if (exists(kind, key)) missing.push({ kind, key });
    }
    return missing;
  }

  private remember(request: ApplyRequest, response: ApplyResponse): void {
    const kind = kindOf(request.kind);
    const { namespace = '', name = '' } = request.meta ?? {};
    const id = `${kind} ${keyText({ namespace, name })}`;
    this.drop(id);
    // Completed rollouts are not listed by the data plane and must not be treated as missing.
    if (response.digest === 0n || response.ota_rollout?.phase === 'completed') return;
    const applied = { digest: response.digest, since: this.comparison, seen: 0 };
    if (kind !== 'OtaRollout') return void this.applied.set(id, applied);
    this.applied.set(id, { ...applied, rolloutId: response.id });
    this.rollouts.set(response.id, id);
  }

  private end(rolloutId: string): void {
    const id = this.rollouts.get(rolloutId);
    if (id !== undefined) this.drop(id);
  }

  private drop(id: string): void {
    const { rolloutId } = this.applied.get(id) ?? {};
    if (rolloutId !== undefined) this.rollouts.delete(rolloutId);
    this.applied.delete(id);
  }

  private forget({ kind, meta }: RemoveRequest): void {
    const { namespace = '', name = '' } = meta ?? {};
    this.drop(`${kindOf(kind)} ${keyText({ namespace, name })}`);
  }
}

/** Returns the request that states that a tenant without a resource has no namespace. */
export function toWithdrawRequest(tenantId: string): ApplyRequest {
  const meta = ObjectMeta.fromPartial({ tenant_id: tenantId, name: tenantId });
  return { kind: controlKinds.Tenant, meta, spec: { namespace: '' }, dry_run: false };
}

/** Returns the request to remove an orphan. */
export function toRemoveRequest({ kind, tenantId, namespace, name }: Orphan): RemoveRequest {
  const meta = ObjectMeta.fromPartial({ tenant_id: tenantId, namespace, name });
  return { kind: controlKinds[kind], meta, detach: false };
}
