// Rules in the database. Every function works inside the caller's transaction.
import type { JsonObject } from '@bufbuild/protobuf';
import type { AlarmSeverity } from '../../device-registry/alarms/alarm-store.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom, countedLimit } from '../../platform/database/number-limits.ts';
import { alreadyExists, notFound, resourceExhausted, sqlState } from '../../platform/errors.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';

/** An action as stored; the secret of a webhook is sealed. */
export type StoredAction =
  | { readonly kind: 'webhook'; readonly url: string; readonly secret: string }
  | { readonly kind: 'rpc'; readonly method: string; readonly params: JsonObject };

/** The columns that a caller sets. Absent ids and severity are null. */
export interface RuleDefinition {
  readonly name: string;
  readonly expression: string;
  readonly profile_id: string | null;
  readonly device_group_id: string | null;
  readonly severity: AlarmSeverity | null;
  readonly alarm_type: string;
  readonly clear_expression: string;
  readonly for_seconds: number;
  readonly cooldown_seconds: number;
  readonly actions: readonly StoredAction[];
  readonly enabled: boolean;
}

/** A row of the table rules, with what evaluations report. */
export interface RuleRow extends RuleDefinition {
  readonly rule_id: string;
  readonly version: number;
  readonly created_at: Date;
  readonly updated_at: Date;
  readonly matches: number;
  readonly last_error: string;
}

/** What evaluations need of an enabled rule. Its actions are read when they are to be taken: they can be large. */
export interface EvaluatedRule extends Omit<RuleDefinition, 'actions' | 'enabled'> {
  readonly rule_id: string;
  readonly version: number;
  readonly action_count: number;
  /** The size of the actions as JSON. */
  readonly action_bytes: number;
}

type Row = RuleRow & Record<string, unknown>;

const columns = `r.rule_id, name, expression, profile_id, device_group_id, severity, alarm_type,
    clear_expression, for_seconds, cooldown_seconds, actions, enabled, version, created_at, updated_at,
    coalesce(p.matches, 0) AS matches, coalesce(nullif(p.evaluation_error, ''), p.action_error, '') AS last_error`;
const reportedRules = 'rules r LEFT JOIN rule_reports p USING (tenant_id, rule_id)';

/** Greatest number of rules of a tenant: every one may be evaluated for every point. */
const maxRules = 1000;
const ruleLimit = countedLimit(
  'tenant',
  'SELECT FROM rules WHERE tenant_id = $1 AND deleted_at IS NULL',
  maxRules,
  'rules',
);

/** Greatest size of the expressions of all rules of a tenant, in bytes: compiled they take about seventy times as much. */
const maxExpressionBytes = 512 * 1024;

/**
 * Announces that the tenant's rules change in this transaction, and serialises such transactions. The first statement
 * of each.
 */
export async function raiseRevision(tx: Transaction, tenantId: string): Promise<void> {
  await tx.query(
    `INSERT INTO rule_revisions AS r (tenant_id, revision) VALUES ($1, 1)
     ON CONFLICT (tenant_id) DO UPDATE SET revision = r.revision + 1`,
    [tenantId],
  );
}

/** Returns the tenant's revision, 0 if it never had rules. */
export async function currentRevision(tx: Transaction, tenantId: string): Promise<bigint> {
  const { rows } = await tx.query<{ revision: bigint }>('SELECT revision FROM rule_revisions WHERE tenant_id = $1', [
    tenantId,
  ]);
  return rows[0]?.revision ?? 0n;
}

/** Returns a rule. Throws NOT_FOUND. */
export async function getRule(tx: Transaction, tenantId: string, ruleId: string): Promise<RuleRow> {
  const { rows } = await tx.query<Row>(
    `SELECT ${columns} FROM ${reportedRules} WHERE r.tenant_id = $1 AND r.rule_id = $2 AND deleted_at IS NULL`,
    [tenantId, ruleId],
  );
  if (!rows[0]) throw notFound('rule');
  return rows[0];
}

/** Returns rules in order of their ids. */
export async function listRules(
  tx: Transaction,
  tenantId: string,
  enabled: boolean | undefined,
  after: string | undefined,
  room: Room,
): Promise<(RuleRow & SizedRow)[]> {
  const { rows } = await tx.query<Row & SizedRow>(
    sizedRows(
      `SELECT ${columns},
         ${jsonBytes('actions')} + octet_length(expression) + octet_length(clear_expression) AS row_bytes
       FROM ${reportedRules} WHERE r.tenant_id = $1 AND deleted_at IS NULL
         AND ($2::boolean IS NULL OR enabled = $2) AND ($3::uuid IS NULL OR r.rule_id > $3)`,
      'rule_id',
      4,
    ),
    [tenantId, enabled ?? null, after ?? null, room.limit, room.bytes],
  );
  return rows;
}

/** Returns the tenant's enabled rules. */
export async function enabledRules(tx: Transaction, tenantId: string): Promise<EvaluatedRule[]> {
  const { rows } = await tx.query<EvaluatedRule & Record<string, unknown>>(
    `SELECT rule_id, name, expression, profile_id, device_group_id, severity, alarm_type, clear_expression, for_seconds,
       cooldown_seconds, version, action_count, action_bytes
     FROM rules WHERE tenant_id = $1 AND enabled AND deleted_at IS NULL ORDER BY rule_id LIMIT $2`,
    [tenantId, maxRules],
  );
  return rows;
}

/** Inserts a rule. Throws ALREADY_EXISTS for a taken name and RESOURCE_EXHAUSTED when the tenant has too many. */
export async function insertRule(
  tx: Transaction,
  tenantId: string,
  ruleId: string,
  definition: RuleDefinition,
): Promise<RuleRow> {
  await raiseRevision(tx, tenantId);
  await checkRoom(tx, [tenantId], ruleLimit);
  const values = columnsOf(definition);
  const names = Object.keys(values);
  await refuseTakenName(
    definition.name,
    tx.query(
      `INSERT INTO rules (tenant_id, rule_id, ${names.join(', ')})
       VALUES ($1, $2, ${names.map((_, index) => `$${index + 3}`).join(', ')})`,
      [tenantId, ruleId, ...Object.values(values)],
    ),
  );
  await checkExpressionBytes(tx, tenantId);
  return getRule(tx, tenantId, ruleId);
}

/** Throws RESOURCE_EXHAUSTED if the expressions of the tenant's rules are too long together. */
async function checkExpressionBytes(tx: Transaction, tenantId: string): Promise<void> {
  const { rows } = await tx.query<{ bytes: number }>(
    `SELECT sum(octet_length(expression) + octet_length(clear_expression))::int4 AS bytes FROM rules
     WHERE tenant_id = $1 AND deleted_at IS NULL`,
    [tenantId],
  );
  if (rows[0]!.bytes <= maxExpressionBytes) return;
  throw resourceExhausted(`the expressions of the rules of a tenant have at most ${maxExpressionBytes} bytes together`);
}

/** Replaces the definition of a rule. Throws ALREADY_EXISTS for a taken name, and RESOURCE_EXHAUSTED. */
export async function updateRule(
  tx: Transaction,
  tenantId: string,
  before: RuleRow,
  definition: RuleDefinition,
): Promise<RuleRow> {
  const values = columnsOf(definition);
  const sets = Object.keys(values).map((column, index) => `${column} = $${index + 4}`);
  await refuseTakenName(
    definition.name,
    tx.query(
      `UPDATE rules SET ${sets.join(', ')}, version = version + $3, updated_at = now()
       WHERE tenant_id = $1 AND rule_id = $2`,
      [tenantId, before.rule_id, isEvaluatedAlike(before, definition) ? 0 : 1, ...Object.values(values)],
    ),
  );
  const bytesOf = (rule: RuleDefinition) => Buffer.byteLength(rule.expression + rule.clear_expression);
  if (bytesOf(definition) > bytesOf(before)) await checkExpressionBytes(tx, tenantId);
  return getRule(tx, tenantId, before.rule_id);
}

/** Returns a rule that names a device group, as a description; undefined if there is none. */
export async function ruleOfGroup(tx: Transaction, tenantId: string, groupId: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ name: string }>(
    `SELECT name FROM rules WHERE tenant_id = $1 AND device_group_id = $2 AND deleted_at IS NULL
     ORDER BY name COLLATE "C" LIMIT 1`,
    [tenantId, groupId],
  );
  return rows[0] && `rule ${JSON.stringify(rows[0].name)}`;
}

/** Returns the number of rules that name a profile. */
export async function countRulesOfProfile(tx: Transaction, tenantId: string, profileId: string): Promise<number> {
  const { rows } = await tx.query<{ rules: number }>(
    'SELECT count(*)::int4 AS rules FROM rules WHERE tenant_id = $1 AND profile_id = $2 AND deleted_at IS NULL',
    [tenantId, profileId],
  );
  return rows[0]!.rules;
}

/** Marks a rule as deleted. Throws NOT_FOUND. */
export async function deleteRule(tx: Transaction, tenantId: string, ruleId: string): Promise<void> {
  await raiseRevision(tx, tenantId);
  const { rowCount } = await tx.query(
    `UPDATE rules SET deleted_at = now(), enabled = false, actions = '[]'
     WHERE tenant_id = $1 AND rule_id = $2 AND deleted_at IS NULL`,
    [tenantId, ruleId],
  );
  if (rowCount === 0) throw notFound('rule');
}

/** Removes what is left of one deleted rule, in steps of bounded size. Returns false when nothing is left. */
export async function purgeDeletedRule(tx: Transaction, maxStates = 1000): Promise<boolean> {
  const { rows } = await tx.query<{ tenant_id: string; rule_id: string }>(
    `SELECT tenant_id, rule_id FROM rules WHERE deleted_at IS NOT NULL
     ORDER BY deleted_at LIMIT 1 FOR UPDATE SKIP LOCKED`,
  );
  const [rule] = rows;
  if (!rule) return false;
  const { rowCount } = await tx.query(
    `DELETE FROM rule_states WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM rule_states WHERE tenant_id = $1 AND rule_id = $2 LIMIT $3))`,
    [rule.tenant_id, rule.rule_id, maxStates],
  );
  if (rowCount === 0) {
    await tx.query('DELETE FROM rules WHERE tenant_id = $1 AND rule_id = $2', [rule.tenant_id, rule.rule_id]);
  }
  return true;
}

const columnsOf = (definition: RuleDefinition): Record<keyof RuleDefinition, unknown> => ({
  name: definition.name,
  expression: definition.expression,
  profile_id: definition.profile_id,
  device_group_id: definition.device_group_id,
  severity: definition.severity,
  alarm_type: definition.alarm_type,
  clear_expression: definition.clear_expression,
  for_seconds: definition.for_seconds,
  cooldown_seconds: definition.cooldown_seconds,
  actions: JSON.stringify(definition.actions),
  enabled: definition.enabled,
});

const isEvaluatedAlike = (one: RuleDefinition, other: RuleDefinition): boolean =>
  (['expression', 'profile_id', 'device_group_id', 'enabled'] as const).every(
    (column) => one[column] === other[column],
  );

async function refuseTakenName(name: string, writing: Promise<unknown>): Promise<void> {
  try {
    await writing;
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    throw alreadyExists(`a rule named ${JSON.stringify(name)} already exists`);
  }
}
