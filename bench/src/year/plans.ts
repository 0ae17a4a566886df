// Checks the plan of every statement of kellet-apiserver in a populated database: none may read a whole table that grows.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import type { RecordedStatement } from '../../../apiserver/src/platform/database/connection/recorded-statement.ts';
import { exceptions, type PlanException } from './plan-exceptions.ts';

/** Tables that do not grow with devices or time: with the number of tenants or processes at most, or because they stay empty. */
const bounded: ReadonlySet<string> = new Set([
  ...['anchor_usage', 'audit_heads', 'rule_revisions', 'telemetry_quotas', 'tenants'],
  // Refused events of 30 days.
  'outbox_set_aside',
  ...['cold_attempts', 'schema_migrations', 'signing_keys', 'telemetry_tails'],
  // As many rows as there are open batches, or some for each.
  ...['open_batch_leaves', 'open_batch_segments'],
  // A few rows for each tenant: the rest is packed into blocks.
  ...['leaf_runs', 'unpacked_leaves', 'withdrawn_proofs'],
  // Its rows are in segments.
  'telemetry_points',
]);

/** Minimum rows for a table's plan to matter. */
const leastRows = 3000;

/** Maximum share of a table covered by a partial index that serves as a work list. */
const worklistShare = 0.1;

/** A statement whose plan reads a table as a whole. */
export interface Finding {
  readonly text: string;
  readonly scope: RecordedStatement['scope'];
  readonly file: string;
  /** Such as `Seq Scan on devices`. */
  readonly reads: readonly string[];
}

/** The result of checking all statements. */
export interface PlanReport {
  readonly planned: number;
  readonly findings: readonly Finding[];
  /** Statements that PostgreSQL could not plan, with the reason. */
  readonly failed: readonly string[];
  /** Exceptions that no statement needs. */
  readonly unused: readonly PlanException[];
  /** Tables that grow and have no settings of autovacuum of their own. */
  readonly unset: readonly string[];
}

/**
 * Returns the tables that grow for which the migrations do not set when autovacuum runs. The default waits for a fifth of a table,
 * which at a hundred million rows is never.
 */
async function tablesWithoutVacuumSettings(client: pg.Client): Promise<string[]> {
  const { rows } = await client.query<{ table: string }>(
    `SELECT relname AS table FROM pg_class
     WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reltuples >= $1
       AND NOT coalesce(array_to_string(reloptions, ' '), '') LIKE '%autovacuum_%' ORDER BY 1`,
    [leastRows],
  );
  return rows.map(({ table }) => table).filter((table) => !bounded.has(table));
}

interface PlanNode {
  readonly 'Node Type': string;
  readonly 'Relation Name'?: string;
  readonly 'Index Name'?: string;
  readonly 'Index Cond'?: string;
  readonly Filter?: string;
  readonly Plans?: readonly PlanNode[];
}

/**
 * Returns the recorded statements, each once, with the numbers of segments replaced by that of one whose table exists. Tables of leaves,
 * which are empty unless an earlier version has filled them, are replaced by the table that they inherit.
 */
function recordedIn(folder: string, segment: string): RecordedStatement[] {
  const lines = readdirSync(folder).flatMap((file) => readFileSync(join(folder, file), 'utf8').split('\n'));
  const statements = new Map<string, RecordedStatement>();
  for (const line of lines.filter((text) => text !== '')) {
    const { text, ...rest } = JSON.parse(line) as RecordedStatement;
    const normal = text
      .replace(/\btelemetry_segment_\d+\b/g, `telemetry_segment_${segment}`)
      .replace(/\bleaf_index_\d+\b/g, 'leaf_index');
    statements.set(`${rest.scope} ${normal}`, { ...rest, text: normal });
  }
  return [...statements.values()];
}

const startsWith = (text: string, start: string | RegExp): boolean =>
  typeof start === 'string' ? text.startsWith(start) : start.test(text);

const words = (text: string): string => text.replace(/\s+/g, ' ').trim();

/** The tables and work lists of a database. */
interface Catalog {
  /** Tables of the schema, with their rows. */
  readonly tables: ReadonlyMap<string, number>;
  /** Partial indexes that cover few rows of their tables: work lists. */
  readonly worklists: ReadonlySet<string>;
}

async function readCatalog(client: pg.Client): Promise<Catalog> {
  const { rows } = await client.query<{ table: string; rows: number; index: string | null; share: number }>(
    `SELECT c.relname AS table, greatest(c.reltuples, 0)::float8 AS rows, i.relname AS index,
       greatest(i.reltuples, 0)::float8 / greatest(c.reltuples, 1)::float8 AS share
     FROM pg_class c LEFT JOIN pg_index x ON x.indrelid = c.oid AND x.indpred IS NOT NULL LEFT JOIN pg_class i ON i.oid = x.indexrelid
     WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace`,
  );
  return {
    tables: new Map(rows.map(({ table, rows: count }) => [table, count])),
    worklists: new Set(rows.filter(({ share }) => share <= worklistShare).flatMap(({ index }) => index ?? [])),
  };
}

/** Returns the large tables and indexes that a plan reads in full. */
function wholeReads(node: PlanNode, catalog: Catalog, isLimited = false): string[] {
  const table = node['Relation Name'] ?? '';
  const type = node['Node Type'];
  const own: string[] = [];
  if ((catalog.tables.get(table) ?? 0) >= leastRows && !bounded.has(table)) {
    if (type === 'Seq Scan' && (!isLimited || node.Filter !== undefined)) own.push(`all of ${table}`);
    else if (/^Index (Only )?Scan$/.test(type) && node['Index Cond'] === undefined) {
      if (!isLimited && !catalog.worklists.has(node['Index Name']!)) own.push(`all of ${node['Index Name']!}`);
    }
  }
  // Input that is sorted, hashed or aggregated is read in full, whatever limit is above it.
  const limits = type === 'Limit' || (isLimited && !/^(Sort|Hash|Aggregate|Materialize|Incremental Sort)$/.test(type));
  return [...own, ...childrenOf(node).flatMap((child) => wholeReads(child, catalog, limits))];
}

/** Returns the tables scanned even with enable_seqscan off. */
function unindexedReads(node: PlanNode, catalog: Catalog): string[] {
  const table = node['Relation Name'] ?? '';
  const isRead = node['Node Type'] === 'Seq Scan' && catalog.tables.has(table) && !bounded.has(table);
  return [
    ...(isRead ? [`all of ${table}, without an index that could serve`] : []),
    ...childrenOf(node).flatMap((child) => unindexedReads(child, catalog)),
  ];
}

const childrenOf = (node: PlanNode): readonly PlanNode[] => node.Plans ?? [];

/** Plans all recorded statements. The database must be populated: the planner correctly scans small tables. */
export async function checkPlans(databaseUrl: string, folder: string): Promise<PlanReport> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    const { rows } = await client.query<{ segment: string; tenant: string }>(
      `SELECT (SELECT max(segment_id) FROM telemetry_segments WHERE state = 'indexed')::text AS segment,
         (SELECT tenant_id FROM tenants LIMIT 1) AS tenant`,
    );
    const { segment, tenant } = rows[0]!;
    const catalog = await readCatalog(client);
    const findings: Finding[] = [];
    const failed: string[] = [];
    const used = new Set<PlanException>();
    const statements = recordedIn(folder, segment);
    for (const statement of statements) {
      const exception = exceptions.find(
        ({ file, start }) => statement.file.startsWith(file) && startsWith(words(statement.text), start),
      );
      if (exception) used.add(exception);
      const reads = new Set<string>();
      try {
        // The plan chosen with these statistics, and whether an index plan exists.
        const chosen = await planOf(client, statement, tenant, '');
        if (!exception) for (const read of wholeReads(chosen, catalog)) reads.add(read);
        const possible = await planOf(client, statement, tenant, 'SET LOCAL enable_seqscan = off');
        const needsIndex = !exception || exception.dependsOnStatistics === true;
        if (needsIndex) for (const read of unindexedReads(possible, catalog)) reads.add(read);
      } catch (error) {
        failed.push(`${statement.file}: ${(error as Error).message}: ${words(statement.text)}`);
      }
      if (reads.size > 0) findings.push({ ...statement, reads: [...reads] });
    }
    return {
      ...{ planned: statements.length - failed.length, findings, failed },
      unused: exceptions.filter((exception) => !used.has(exception) && !exception.dependsOnStatistics),
      unset: await tablesWithoutVacuumSettings(client),
    };
  } finally {
    await client.end();
  }
}

async function planOf(
  client: pg.Client,
  { scope, text }: RecordedStatement,
  tenant: string,
  planner: string,
): Promise<PlanNode> {
  await client.query(`BEGIN; ${planner}`);
  try {
    if (scope === 'tenant')
      await client.query(`SELECT set_config('role', 'kellet_tenant', true), set_config('kellet.tenant_id', $1, true)`, [
        tenant,
      ]);
    const { rows } = await client.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>(
      `EXPLAIN (GENERIC_PLAN, FORMAT JSON) ${text}`,
    );
    return rows[0]!['QUERY PLAN'][0].Plan;
  } finally {
    await client.query('ROLLBACK');
  }
}
