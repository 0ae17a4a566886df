// Lists the working copies of resources, for the operator's drift check (control.proto, ListWorkingCopies).
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Kind } from '@kellet/crds';
import type { ListWorkingCopiesResponseSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Database } from '../platform/database/database.ts';
import { isId } from '../platform/ids.ts';
import { kindNumbers } from './kinds.ts';

/** Maximum number of working copies per message. */
const copiesPerMessage = 1000;

const unsigned = (digest: bigint): bigint => BigInt.asUintN(64, digest);

/** Returns the digest of a working copy, or 0 if there is none. */
export async function digestOf(database: Database, kind: Kind, tenantId: string, id: string): Promise<bigint> {
  if (kind !== 'Tenant' && !isId(id)) return 0n;
  const rowId = kind === 'Tenant' ? null : id;
  const { rows } = await database.systemRead((tx) =>
    tx.query<{ digest: bigint }>(
      `SELECT digest FROM working_copies WHERE kind = $1 AND tenant_id = $2 AND (id = $3 OR kind = 'Tenant')`,
      [kind, tenantId, rowId],
    ),
  );
  return rows[0] ? unsigned(rows[0].digest) : 0n;
}

/** Yields all working copies of one snapshot, a thousand per message. */
export async function* listWorkingCopies(
  database: Database,
  signal: AbortSignal,
): AsyncGenerator<MessageInitShape<typeof ListWorkingCopiesResponseSchema>> {
  interface Row {
    kind: Kind;
    tenant_id: string;
    namespace: string;
    name: string;
    digest: bigint;
  }
  const rows = await database.system(async (tx) => {
    const found = await tx.query<Row & Record<string, unknown>>(
      'SELECT kind, tenant_id, namespace, name, digest FROM working_copies',
    );
    return found.rows;
  });
  for (let at = 0; at < rows.length && !signal.aborted; at += copiesPerMessage) {
    yield {
      workingCopies: rows.slice(at, at + copiesPerMessage).map((row) => ({
        kind: kindNumbers[row.kind],
        tenantId: row.tenant_id,
        namespace: row.namespace,
        name: row.name,
        digest: unsigned(row.digest),
      })),
    };
  }
}
