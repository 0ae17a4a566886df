// Checks the index of leaves: what waits to be packed, and the runs, against the leaf vectors of the batches.
import type { Transaction } from '../platform/database/database.ts';
import { readCursor } from '../platform/statements/cursor.ts';
import { hashBytes, idBytes, prefixOf } from '../telemetry/leaves/leaf-blocks.ts';
import { idAt } from '../telemetry/leaves/leaf-bytes.ts';
import { sourceOf } from '../telemetry/leaves/packing.ts';
import { devicesProblem, readRun, type RunContents } from '../telemetry/leaves/read-run.ts';
import { type Check, type CheckParts, Findings, nothing, type Outcome, snapshot } from './check.ts';

const runsAtOnce = 1000;
const rowsAtOnce = 1000;
const batchesAtOnce = 100;

/** Yields a check for the leaves that wait to be packed, and for each run. */
export async function* leafChecks(parts: CheckParts): AsyncGenerator<Check> {
  yield () => checkUnpacked(parts);
  for (let after = ['', '00000000-0000-0000-0000-000000000000']; ;) {
    const [tenant, run] = after;
    const { rows } = await parts.database.systemRead((tx) =>
      tx.query<{ tenant_id: string; run_id: string }>(
        `SELECT tenant_id, run_id FROM leaf_runs WHERE (tenant_id, run_id) > ($1, $2) AND replaced_at IS NULL
           AND ($3::text IS NULL OR tenant_id = $3)
         ORDER BY tenant_id, run_id LIMIT ${runsAtOnce}`,
        [tenant, run, parts.tenantId ?? null],
      ),
    );
    for (const row of rows) yield () => checkRun(parts, row.tenant_id, row.run_id);
    if (rows.length < runsAtOnce) return;
    after = [rows.at(-1)!.tenant_id, rows.at(-1)!.run_id];
  }
}

interface UnpackedRow {
  tenant_id: string;
  batch_id: string;
  is_proven: boolean;
  devices: number;
  status: string | null;
  leaves: number | null;
}

function checkUnpacked({ database, tenantId }: CheckParts): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const findings = new Findings();
    let entries = 0;
    const text = `SELECT u.tenant_id, u.batch_id, u.is_proven, octet_length(u.devices) / ${idBytes} AS devices, b.status,
        octet_length(b.leaves) / ${hashBytes} AS leaves
      FROM unpacked_leaves u LEFT JOIN anchor_batches b ON b.tenant_id = u.tenant_id AND b.batch_id = u.batch_id
      ${tenantId === undefined ? '' : 'WHERE u.tenant_id = $1'}`;
    const values = tenantId === undefined ? [] : [tenantId];
    for await (const rows of readCursor<UnpackedRow>(tx, { name: 'unpacked', text, values }, rowsAtOnce)) {
      for (const row of rows) {
        entries += row.devices;
        const problem = unpackedProblem(row);
        if (problem !== undefined) findings.add('leaf_index', row.batch_id, row.tenant_id, problem);
      }
    }
    return { checked: { leaf_index_entries: entries }, findings: findings.all };
  });
}

function unpackedProblem(row: UnpackedRow): string | undefined {
  if (row.status === null || row.leaves === null) return 'the index names a batch that does not exist';
  if (row.devices !== row.leaves) return `the index has ${row.devices} of its ${row.leaves} leaves`;
  return row.is_proven === (row.status === 'confirmed')
    ? undefined
    : 'the index does not know whether the batch is confirmed';
}

function checkRun({ database }: CheckParts, tenantId: string, runId: string): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows } = await tx.query<{ leaves: number; devices: number; batches: number }>(
      'SELECT leaves, devices, batches FROM leaf_runs WHERE tenant_id = $1 AND run_id = $2 AND replaced_at IS NULL',
      [tenantId, runId],
    );
    const [facts] = rows;
    if (!facts) return nothing;
    const findings = new Findings();
    const contents = await readRun(sourceOf(tx, { tenantId, runId }, facts));
    const problem = devicesProblem(facts, contents);
    if (problem !== undefined) findings.add('leaf_index', runId, tenantId, problem);
    const { batches } = contents;
    if (batches.length !== facts.batches)
      findings.add('leaf_index', runId, tenantId, `it has ${batches.length} of its ${facts.batches} batches`);
    for (let first = 0; first < batches.length; first += batchesAtOnce)
      await checkBatches(tx, { tenantId, leaves: facts.leaves, contents, first }, findings);
    return { checked: { leaf_index_entries: facts.leaves }, findings: findings.all };
  });
}

/** Compares some batches of a run with their leaf vectors. */
async function checkBatches(
  tx: Transaction,
  run: {
    readonly tenantId: string;
    readonly leaves: number;
    readonly contents: RunContents;
    readonly first: number;
  },
  findings: Findings,
): Promise<void> {
  const { batches, prefixes } = run.contents;
  const some = batches.slice(run.first, run.first + batchesAtOnce);
  const { rows } = await tx.query<{ batch_id: string; leaves: Buffer | null }>(
    'SELECT batch_id, leaves FROM anchor_batches WHERE tenant_id = $1 AND batch_id = ANY($2)',
    [run.tenantId, some.map(({ id }) => idAt(id))],
  );
  const vectors = new Map(rows.map((row) => [row.batch_id, row.leaves]));
  for (const [index, { id, value }] of some.entries()) {
    const batchId = idAt(id);
    const end = batches[run.first + index + 1]?.value ?? run.leaves;
    const problem = batchProblem(prefixes.subarray(value, end), vectors.get(batchId));
    if (problem !== undefined) findings.add('leaf_index', batchId, run.tenantId, problem);
  }
}

function batchProblem(prefixes: Float64Array, leaves: Buffer | null | undefined): string | undefined {
  if (!leaves) return 'the index names a batch that does not exist';
  if (prefixes.length !== leaves.length / hashBytes)
    return `the index has ${prefixes.length} of its ${leaves.length / hashBytes} leaves`;
  const wrong = prefixes.findIndex((prefix, leaf) => prefix !== prefixOf(leaves, leaf * hashBytes));
  return wrong < 0 ? undefined : `the index has another hash for leaf ${wrong}`;
}
