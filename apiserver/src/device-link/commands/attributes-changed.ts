// The command attributes_changed, which tells a connected device what changed in its shared attributes.
import type { JsonObject } from '@bufbuild/protobuf';
import type { Transaction } from '../../platform/database/database.ts';
import { attributesChanged } from './command-method.ts';
import { enqueueCommand, openStatuses } from './commands.ts';

/** A device that does not connect within this time reads its attributes when it does. */
const lifetimeSeconds = 60;

/**
 * Queues the command for a change whose device the transaction has locked. Takes the changed names out of earlier commands
 * that the device has not responded to, so that a command which is delivered again cannot bring back an older value; an
 * earlier command of which nothing is left is cancelled, or not delivered again.
 */
export async function enqueueAttributesChanged(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  delta: { readonly changed: JsonObject; readonly removed: readonly string[] },
): Promise<void> {
  await tx.query(
    `WITH earlier AS (
       SELECT correlation_id, (params->'changed') - $3::text[] AS changed, (params->'removed') - $3::text[] AS removed
       FROM device_commands
       WHERE tenant_id = $1 AND device_id = $2 AND status IN ${openStatuses} AND method = '${attributesChanged}'
         -- An earlier release let users send commands of this name, with any params.
         AND jsonb_typeof(params->'changed') = 'object' AND jsonb_typeof(params->'removed') = 'array'
         AND (params->'changed' ?| $3::text[] OR params->'removed' ?| $3::text[])
       FOR UPDATE)
     UPDATE device_commands c SET params = jsonb_build_object('changed', changed, 'removed', removed),
       status = CASE WHEN is_empty AND status = 'queued' THEN 'cancelled' ELSE status END,
       finished_at = CASE WHEN is_empty AND status = 'queued' THEN now() END,
       not_before = CASE WHEN is_empty THEN 'infinity' ELSE not_before END
     FROM (SELECT *, changed = '{}' AND removed = '[]' AS is_empty FROM earlier) AS e
     WHERE c.tenant_id = $1 AND c.correlation_id = e.correlation_id`,
    [tenantId, deviceId, [...Object.keys(delta.changed), ...delta.removed]],
  );
  await enqueueCommand(tx, {
    ...{ tenantId, deviceId, method: attributesChanged, persistent: false, expiresInSeconds: lifetimeSeconds },
    params: { changed: delta.changed, removed: [...delta.removed] },
  });
}
