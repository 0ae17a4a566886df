// What live feeds show of rollouts: the resource as REST returns it, and the announcements of its changes.
import { create, type JsonObject, toJson } from '@bufbuild/protobuf';
import { RolloutSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { followChanges } from '../../../control/changes.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database } from '../../../platform/database/database.ts';
import { isId } from '../../../platform/ids.ts';
import { toRollouts } from './observed.ts';
import { findRollouts } from './stores/rollout-store.ts';

/** A rollout as clients see it. */
export interface ShownRollout {
  /** The custom resource, `namespace/name`, by which its changes are announced. */
  readonly resource: string;
  /** Increases with each change. */
  readonly revision: bigint;
  readonly rollout: JsonObject;
}

/** Returns those of the rollouts that exist in the tenant, by their ids, at the cost of one read. */
export async function shownRollouts(
  { database, clock }: { readonly database: Database; readonly clock: Clock },
  tenantId: string,
  rolloutIds: readonly string[],
): Promise<Map<string, ShownRollout>> {
  const ids = rolloutIds.filter(isId);
  if (ids.length === 0) return new Map();
  return database.read(tenantId, async (tx) => {
    const states = await findRollouts(tx, tenantId, ids);
    const rollouts = await toRollouts(tx, tenantId, states, new Date(clock.now()));
    return new Map(
      states.map(({ rolloutId, namespace, name, revision }, index) => {
        const message = create(RolloutSchema, rollouts[index]);
        const rollout = toJson(RolloutSchema, message, { useProtoFieldName: true, alwaysEmitImplicit: true });
        return [rolloutId, { resource: `${namespace}/${name}`, revision, rollout: rollout as JsonObject }];
      }),
    );
  });
}

/**
 * Calls back for each changed rollout with its custom resource, `tenant/namespace/name`, and with undefined when changes
 * may have been missed.
 */
export function followRollouts(database: Database, changed: (resource: string | undefined) => void): void {
  followChanges(database, (change) => {
    if (change === undefined) changed(undefined);
    else if (change.kind === 'OtaRollout') changed(`${change.tenantId}/${change.namespace}/${change.name}`);
  });
}
