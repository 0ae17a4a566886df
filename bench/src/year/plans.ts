// Checks the plan of every statement of kellet-apiserver in a full house: none may read a whole table that grows.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import type { RecordedStatement } from '../../../apiserver/src/platform/database/recorded-statement.ts';
import { exceptions, type PlanException } from './plan-exceptions.ts';

/** Tables that do not grow with devices or time: with the number of tenants or processes at most, or because they stay empty. */
const bounded: ReadonlySet<string> = new Set([
  ...['anchor_usage', 'audit_heads', 'rule_revisions', 'telemetry_quotas', 'tenants'],
  // Refused events of 30 days.
  'outbox_set_aside',
  ...['cold_attempts', 'schema_migrations', 'signing_keys', 'telemetry_tails'],
  // Its rows are in segments.
  'telemetry_points',
]);

/** Rows from which on a table is large enough for the choice of its plan to count. */
const telling = 3000;

/** Share of a table that a partial index may have to be the list of what is to be done. */
const worklistShare = 0.1;

/** A statement whose plan reads a table as a whole. */
export interface Finding {
  readonly text: string;
  readonly scope: RecordedStatement['scope'];
  readonly file: string;
  /** Such as `Seq Scan on devices`. */
  readonly reads: readonly string[];
}

/** What was found. */
export interface PlanReport {
  readonly planned: number;
  readonly findings: readonly Finding[];
  /** Statements that PostgreSQL could not plan, with the reason. */
  readonly failed: readonly string[];
  /** Exceptions that nothing needs. */
  readonly unused: readonly PlanException[];
}

interface PlanNode {
  readonly 'Node Type': string;
  readonly 'Relation Name'?: string;
  readonly 'Index Name'?: string;
  readonly 'Index Cond'?: string;
  readonly Filter?: string;
  readonly Plans?: readonly PlanNode[];
}

/** Returns the recorded statements, each once, with the numbers of segments replaced by one that exists. */
function recordedIn(folder: string, segment: string): RecordedStatement[] {
  const lines = readdirSync(folder).flatMap((file) => readFileSync(join(folder, file), 'utf8').split('\n'));
  const statements = new Map<string, RecordedStatement>();
  for (const line of lines.filter((text) => text !== '')) {
    const { text, ...rest } = JSON.parse(line) as RecordedStatement;
    const normal = text.replace(/\b(telemetry_segment|leaf_index)_\d+\b/g, `$1_${segment}`);
    statements.set(`${rest.scope} ${normal}`, { ...rest, text: normal });
  }
  return [...statements.values()];
}

const words = (text: string): string => text.replace(/\s+/g, ' ').trim();

/** What a plan may read as a whole. */
interface Ground {
  /** Tables of the schema, with their rows. */
  readonly tables: ReadonlyMap<string, number>;
  /** Partial indexes with few of the rows of their tables: what is to be done. */
  readonly worklists: ReadonlySet<string>;
}

async function readGround(client: pg.Client): Promise<Ground> {
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

/** Returns what a plan reads to its end: large tables, and their indexes. */
function wholeReads(node: PlanNode, ground: Ground, isLimited = false): string[] {
  const table = node['Relation Name'] ?? '';
  const type = node['Node Type'];
  const own: string[] = [];
  if ((ground.tables.get(table) ?? 0) >= telling && !bounded.has(table)) {
    if (type === 'Seq Scan' && (!isLimited || node.Filter !== undefined)) own.push(`all of ${table}`);
    else if (/^Index (Only )?Scan$/.test(type) && node['Index Cond'] === undefined) {
      if (!isLimited && !ground.worklists.has(node['Index Name']!)) own.push(`all of ${node['Index Name']!}`);
    }
  }
  // What is sorted, hashed or aggregated is read to its end, whatever limit stands above.
  const limits = type === 'Limit' || (isLimited && !/^(Sort|Hash|Aggregate|Materialize|Incremental Sort)$/.test(type));
  return [...own, ...childrenOf(node).flatMap((child) => wholeReads(child, ground, limits))];
}

/** Returns the tables that a plan without sequential scans, wherever there is a choice, still reads in that way. */
function unindexedReads(node: PlanNode, ground: Ground): string[] {
  const table = node['Relation Name'] ?? '';
  const isRead = node['Node Type'] === 'Seq Scan' && ground.tables.has(table) && !bounded.has(table);
  return [
    ...(isRead ? [`all of ${table}, without an index that could serve`] : []),
    ...childrenOf(node).flatMap((child) => unindexedReads(child, ground)),
  ];
}

const childrenOf = (node: PlanNode): readonly PlanNode[] => node.Plans ?? [];

/** Plans all recorded statements. The house must be full: a planner reads small tables as a whole, and rightly. */
export async function checkPlans(databaseUrl: string, folder: string): Promise<PlanReport> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    const { rows } = await client.query<{ id: string; tenant: string }>(
      `SELECT (SELECT max(segment_id) FROM telemetry_segments WHERE state = 'indexed')::text AS id,
         (SELECT tenant_id FROM tenants LIMIT 1) AS tenant`,
    );
    const { id, tenant } = rows[0]!;
    const ground = await readGround(client);
    const findings: Finding[] = [];
    const failed: string[] = [];
    const used = new Set<PlanException>();
    const statements = recordedIn(folder, id);
    for (const statement of statements) {
      const reads = new Set<string>();
      try {
        // As the planner chooses with these statistics, and whether there is a way along indexes at all.
        const chosen = await planOf(client, statement, tenant, '');
        for (const read of wholeReads(chosen, ground)) reads.add(read);
        const possible = await planOf(client, statement, tenant, 'SET LOCAL enable_seqscan = off');
        for (const read of unindexedReads(possible, ground)) reads.add(read);
      } catch (error) {
        failed.push(`${statement.file}: ${(error as Error).message}: ${words(statement.text)}`);
      }
      const exception = exceptions.find(
        ({ file, start }) => statement.file.startsWith(file) && words(statement.text).startsWith(start),
      );
      if (exception) used.add(exception);
      else if (reads.size > 0) findings.push({ ...statement, reads: [...reads] });
    }
    return {
      ...{ planned: statements.length - failed.length, findings, failed },
      unused: exceptions.filter((exception) => !used.has(exception)),
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
