// Validates the fields of rules and converts them between messages and rows. Pure.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { Alarm_Severity, Alarm_SeveritySchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Rule_Action, RuleSchema } from '@kellet/proto/es/kellet/v1/rules_pb';
import { methodField } from '../../device-link/commands/command-method.ts';
import type { AlarmSeverity } from '../../device-registry/alarms/alarm-store.ts';
import { invalidArgument, notFound } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import type { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { enumFilter } from '../../platform/requests/enums.ts';
import { freeJsonField, textField } from '../../platform/requests/fields.ts';
import type { Caller } from '../../platform/rpc.ts';
import { urlProblems } from '../../webhooks/sending/webhook-call.ts';
import type { WebhookSecrets } from '../../webhooks/sending/webhook-secrets.ts';
import { compile, type Compiled } from '../cel/cel-expression.ts';
import type { RuleDefinition, RuleRow, StoredAction } from './rule-store.ts';

const maxSeconds = 30 * 86_400;
const maxActions = 10;
const maxParamsBytes = 65_536;

/** The fields of a rule that a caller sets, as in the messages. */
export interface GivenRule {
  readonly name: string;
  readonly expression: string;
  readonly profileId: string;
  readonly deviceGroupId: string;
  readonly severity: Alarm_Severity | undefined;
  readonly alarmType: string;
  readonly clearExpression: string;
  readonly forSeconds: number;
  readonly cooldownSeconds: number;
  readonly enabled: boolean;
}

/** The context in which actions are converted. */
export interface ActionContext {
  readonly tenantId: string;
  readonly guard: OutboundGuard;
  readonly secrets: WebhookSecrets;
  /** The actions that are replaced: an empty secret keeps the one of the same URL. */
  readonly before: readonly StoredAction[];
}

/** Checks those expressions that are given. Throws INVALID_ARGUMENT. */
export function checkExpressions(given: {
  expression?: string | undefined;
  clearExpression?: string | undefined;
}): void {
  if (given.expression !== undefined) checkExpression('expression', given.expression);
  if (given.clearExpression) checkExpression('clear_expression', given.clearExpression);
}

/**
 * Checks the fields, without the expressions, which take long, and returns the row's columns. Throws INVALID_ARGUMENT, and NOT_FOUND for
 * text that is no id.
 */
export function toDefinition(given: GivenRule, actions: readonly StoredAction[]): RuleDefinition {
  const name = textField('name', given.name, { minimum: 1, maximum: 128 });
  return {
    name,
    expression: given.expression,
    profile_id: optionalId('profile_id', given.profileId),
    device_group_id: optionalId('device_group_id', given.deviceGroupId),
    severity: enumFilter<AlarmSeverity>('severity', Alarm_SeveritySchema, given.severity) ?? null,
    alarm_type: textField('alarm_type', given.alarmType, { maximum: 128 }) || name,
    clear_expression: given.clearExpression,
    for_seconds: seconds('for_seconds', given.forSeconds),
    cooldown_seconds: seconds('cooldown_seconds', given.cooldownSeconds),
    actions,
    enabled: given.enabled,
  };
}

/** Returns the fields of a row, as the base of an update. */
export const toGiven = (row: RuleRow): GivenRule => ({
  name: row.name,
  expression: row.expression,
  profileId: row.profile_id ?? '',
  deviceGroupId: row.device_group_id ?? '',
  severity: row.severity === null ? undefined : Alarm_Severity[row.severity],
  alarmType: row.alarm_type,
  clearExpression: row.clear_expression,
  forSeconds: row.for_seconds,
  cooldownSeconds: row.cooldown_seconds,
  enabled: row.enabled,
});

/**
 * Converts a row to the public message, without secrets. Of a webhook's URL, whose path is often one, those who do not
 * write rules are shown where it leads.
 */
export const toRule = (row: RuleRow, { scopes }: Caller): MessageInitShape<typeof RuleSchema> => ({
  ruleId: row.rule_id,
  ...toGiven(row),
  actions: row.actions.map((action) => ({
    action:
      action.kind === 'webhook'
        ? { case: 'webhook', value: { url: scopes.has('rules:write') ? action.url : new URL(action.url).origin } }
        : { case: 'rpc', value: { method: action.method, params: action.params } },
  })),
  lastError: row.last_error,
  matches: row.matches,
  createdAt: timestampFromDate(row.created_at),
  updatedAt: timestampFromDate(row.updated_at),
});

/** Checks actions and returns them as stored. Throws INVALID_ARGUMENT naming the action. */
export function toActions(actions: readonly Rule_Action[], context: ActionContext): StoredAction[] {
  if (actions.length > maxActions) throw invalidArgument(`actions must have at most ${maxActions} entries`);
  return actions.map(({ action }, index) => {
    const field = `actions[${index}]`;
    if (action.case === 'webhook') return toWebhook(field, action.value, context);
    if (action.case === 'rpc') {
      const params = action.value.params ?? {};
      freeJsonField(`${field}.rpc.params`, params, maxParamsBytes);
      return { kind: 'rpc', method: methodField(`${field}.rpc.method`, action.value.method), params };
    }
    throw invalidArgument(`${field} must have webhook or rpc`);
  });
}

function toWebhook(field: string, given: { url: string; secret: string }, context: ActionContext): StoredAction {
  const url = textField(`${field}.webhook.url`, given.url, { minimum: 1, maximum: 2048 });
  const secret = textField(`${field}.webhook.secret`, given.secret, { maximum: 256 });
  const problem = context.guard.problemOf(url);
  if (problem) throw invalidArgument(`${field}.webhook.url ${urlProblems[problem]}`);
  const kept = context.before.find((action) => action.kind === 'webhook' && action.url === url);
  if (secret === '' && kept) return kept;
  return { kind: 'webhook', url, secret: context.secrets.seal(context.tenantId, secret) };
}

/** Returns the compiled expression. Throws INVALID_ARGUMENT with the place of the first error. */
export function checkExpression(field: string, text: string): Compiled {
  const compiled = compile(text);
  if (!('errors' in compiled)) return compiled.evaluate;
  const { line, column, message } = compiled.errors[0]!;
  throw invalidArgument(`${field}: line ${line}, column ${column}: ${message}`);
}

function optionalId(field: string, value: string): string | null {
  if (value === '') return null;
  if (!isId(value)) throw notFound(field);
  return value.toLowerCase();
}

function seconds(field: string, value: number): number {
  if (value > maxSeconds) throw invalidArgument(`${field} must be at most ${maxSeconds}`);
  return value;
}
