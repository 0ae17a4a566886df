// Detects drift by periodically comparing the data plane's working copies with what was applied, without reading either
// in full. A working copy that differs or is missing is applied again; one without a resource is removed.
//
// The data plane returns a digest with each Apply, and the digests of all working copies in one cheap call. Applying
// again updates the expected digest, so a difference that cannot be repaired is tried only once.
import type { Kind } from '@kellet/crds';
import { keyText } from '@kellet/kubernetes';
import {
  type ApplyRequest,
  type ApplyResponse,
  ObjectMeta,
  type RemoveRequest,
  type WorkingCopy,
} from '@kellet/proto/ts/kellet/control/v1/control';
import type { DataPlane } from './data-plane.ts';
import { controlKinds, kindOf } from './resources.ts';
import type { Target } from './triggers.ts';

/** A working copy without a resource. */
export interface Orphan {
  kind: Exclude<Kind, 'Tenant'>;
  tenantId: string;
  namespace: string;
  name: string;
}

/** Result of a comparison. */
export interface Drift {
  /** Resources whose working copy differs from what was applied. */
  changed: Target[];
  /** Resources without a working copy. */
  missing: Target[];
  /** Working copies without a resource in {@link orphanComparisons} consecutive comparisons. */
  orphans: Orphan[];
}

/** Number of consecutive comparisons without a resource after which a working copy is an orphan. */
export const orphanComparisons = 10;

/** Records what was applied and compares it with the data plane. */
export class DriftCheck {
  /** Digests by `kind key`, each with the number of the comparison that preceded it. */
  private readonly applied = new Map<string, { digest: bigint; since: number }>();
  /** `kind key` of the resource of each rollout, by rollout id. */
  private readonly rollouts = new Map<string, string>();
  /** Number of consecutive comparisons without a resource, by `kind key`. */
  private readonly alone = new Map<string, number>();
  private comparison = 0;

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

  /** Begins a comparison, before the working copies are read. Later Applies are not compared. */
  begin(): void {
    this.comparison += 1;
  }

  /** Compares what was applied with the working copies. `exists` reports whether the cluster has the resource. */
  compare(copies: readonly WorkingCopy[], exists: (kind: Kind, key: string) => boolean): Drift {
    const drift: Drift = { changed: [], missing: [], orphans: [] };
    const seen = new Set<string>();
    const alone = new Map<string, number>();
    for (const { kind: number, tenant_id, namespace, name, digest } of copies) {
      const kind = kindOf(number);
      if (!kind) continue;
      const key = keyText({ namespace, name });
      const id = `${kind} ${key}`;
      seen.add(id);
      const applied = this.applied.get(id);
      if (applied && applied.since < this.comparison && applied.digest !== digest) drift.changed.push({ kind, key });
      // A tenant is removed only by deleting its resource, because this cannot be undone.
      if (kind === 'Tenant' || exists(kind, key)) continue;
      const times = (this.alone.get(id) ?? 0) + 1;
      alone.set(id, times % orphanComparisons);
      if (times === orphanComparisons) drift.orphans.push({ kind, tenantId: tenant_id, namespace, name });
    }
    this.alone.clear();
    for (const [id, times] of alone) this.alone.set(id, times);
    for (const [id, { since }] of this.applied) {
      if (seen.has(id) || since >= this.comparison) continue;
      this.applied.delete(id);
      const at = id.indexOf(' ');
      const [kind, key] = [id.slice(0, at) as Kind, id.slice(at + 1)];
      if (exists(kind, key)) drift.missing.push({ kind, key });
    }
    return drift;
  }

  private remember(request: ApplyRequest, response: ApplyResponse): void {
    const kind = kindOf(request.kind);
    const { namespace = '', name = '' } = request.meta ?? {};
    const id = `${kind} ${keyText({ namespace, name })}`;
    // Completed rollouts are not listed by the data plane and must not be treated as missing.
    const ended = response.ota_rollout?.phase === 'completed';
    if (ended) this.end(response.id);
    else if (kind === 'OtaRollout') this.rollouts.set(response.id, id);
    if (response.digest === 0n || ended) this.applied.delete(id);
    else this.applied.set(id, { digest: response.digest, since: this.comparison });
  }

  private end(rolloutId: string): void {
    const id = this.rollouts.get(rolloutId);
    this.rollouts.delete(rolloutId);
    if (id !== undefined) this.applied.delete(id);
  }

  private forget({ kind, meta }: RemoveRequest): void {
    const { namespace = '', name = '' } = meta ?? {};
    this.applied.delete(`${kindOf(kind)} ${keyText({ namespace, name })}`);
  }
}

/** Returns the request to remove an orphan. */
export function toRemoveRequest({ kind, tenantId, namespace, name }: Orphan): RemoveRequest {
  const meta = ObjectMeta.fromPartial({ tenant_id: tenantId, namespace, name });
  return { kind: controlKinds[kind], meta, detach: false };
}
