// Lists the working copies of resources, for the operator's drift check (control.proto, ListWorkingCopies).
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Kind } from '@kellet/crds';
import type {
  ListWorkingCopiesRequest,
  ListWorkingCopiesResponseSchema,
  WorkingCopySchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { invalidArgument } from '../platform/errors.ts';
import { isId, nilId } from '../platform/ids.ts';
import { planAlongIndexes } from '../platform/statements/index-plans.ts';
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

/** Where a page ended: after this copy. */
interface Position {
  readonly kind: Kind;
  readonly tenantId: string;
  /** The nil id for a Tenant. */
  readonly id: string;
}

/** The order of kinds. */
const kinds = Object.keys(kindNumbers) as Kind[];

const beginningOf = (kind: Kind): Position => ({ kind, tenantId: '', id: nilId });

/** Returns the token of the page that follows. */
const tokenOf = ({ kind, tenantId, id }: Position): string => `${kind}/${tenantId}/${id}`;

/** Throws INVALID_ARGUMENT for an invalid token. */
function positionOf(token: string): Position {
  if (token === '') return beginningOf('Tenant');
  const [kind, tenantId = '', id = '', ...rest] = token.split('/');
  const known = kinds.find((one) => one === kind);
  if (!known || !isId(id) || rest.length > 0) throw invalidArgument('page_token is not valid');
  return { kind: known, tenantId, id };
}

/** The rows of each kind that the view has, and their key. */
const tables: Record<Kind, { readonly table: string; readonly id?: string; readonly condition: string }> = {
  Tenant: { table: 'tenants', condition: 'deleted_at IS NULL' },
  DeviceProfile: { table: 'profiles', id: 'profile_id', condition: 'detached_at IS NULL' },
  ProvisioningTemplate: { table: 'provisioning_templates', id: 'template_id', condition: 'detached_at IS NULL' },
  OtaPackage: { table: 'ota_packages', id: 'package_id', condition: 'deleted_at IS NULL' },
  OtaRollout: { table: 'ota_rollouts', id: 'rollout_id', condition: `phase <> 'completed'` },
};

/** Returns the statement that reads the copies of a kind behind a position ($2 and $3), at most $1: first their keys, by an index. */
function pageStatement(kind: Kind): string {
  const { table, id, condition } = tables[kind];
  const key = id === undefined ? 'tenant_id' : `tenant_id, ${id}`;
  const after = id === undefined ? 'tenant_id > $2' : `(${key}) > ($2, $3::uuid)`;
  const own = id === undefined ? 'true' : 'c.id = p.id';
  return `WITH page AS MATERIALIZED (
      SELECT tenant_id, ${id ?? 'NULL::uuid'} AS id FROM ${table} WHERE ${condition} AND ${after} ORDER BY ${key} LIMIT $1)
    SELECT c.* FROM page p, LATERAL (
      SELECT tenant_id, id, namespace, name, digest FROM working_copies c
      WHERE kind = '${kind}' AND c.tenant_id = p.tenant_id AND ${own} LIMIT 1) c
    ORDER BY c.tenant_id, c.id`;
}

interface Row {
  readonly tenant_id: string;
  readonly id: string | null;
  readonly namespace: string;
  readonly name: string;
  readonly digest: bigint;
}

/** Reads at most so many copies. `next` is where the next ones are, undefined at the end. */
async function readCopies(tx: Transaction, from: Position, limit: number) {
  await planAlongIndexes(tx);
  const copies: MessageInitShape<typeof WorkingCopySchema>[] = [];
  for (const kind of kinds.slice(kinds.indexOf(from.kind))) {
    const { tenantId, id } = kind === from.kind ? from : beginningOf(kind);
    const room = limit - copies.length;
    const values = [room, tenantId, ...(kind === 'Tenant' ? [] : [id])];
    const { rows } = await tx.query<Row & Record<string, unknown>>(pageStatement(kind), values);
    for (const { tenant_id, namespace, name, digest } of rows)
      copies.push({ kind: kindNumbers[kind], tenantId: tenant_id, namespace, name, digest: unsigned(digest) });
    const last = rows.at(-1);
    if (rows.length === room && last)
      return { copies, next: { kind, tenantId: last.tenant_id, id: last.id ?? nilId } satisfies Position };
  }
  return { copies, next: undefined };
}

/**
 * Yields a page of the working copies, of which each message is a snapshot of its own (control.proto, ListWorkingCopies). Costs what it
 * yields, whatever is stored. Throws INVALID_ARGUMENT for an invalid token.
 */
export async function* listWorkingCopies(
  database: Database,
  request: Pick<ListWorkingCopiesRequest, 'pageSize' | 'pageToken'>,
  signal: AbortSignal,
): AsyncGenerator<MessageInitShape<typeof ListWorkingCopiesResponseSchema>> {
  let left = request.pageSize || Infinity;
  let position = positionOf(request.pageToken);
  while (!signal.aborted) {
    const limit = Math.min(left, copiesPerMessage);
    const { copies, next } = await database.system((tx) => readCopies(tx, position, limit));
    left -= copies.length;
    const isLast = !next || left === 0;
    yield { workingCopies: copies, nextPageToken: isLast && next ? tokenOf(next) : '' };
    if (isLast) return;
    position = next;
  }
}
