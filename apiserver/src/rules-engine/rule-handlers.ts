// The handlers of `rules`.
import type { RulesService, UpdateRuleRequest } from '@kellet/proto/es/kellet/v1/rules_pb';
import { refuseLosses } from '../auth/credentials/refuse-losses.ts';
import { unknownGroups } from '../device-registry/devices/group-members.ts';
import { type Clock, sleep } from '../platform/clock.ts';
import { FairSlots } from '../platform/concurrency/fair-slots.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { invalidArgument, notFound, permissionDenied, resourceExhausted } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import type { OutboundGuard } from '../platform/outbound/outbound-guard.ts';
import { idField, updatedFields } from '../platform/requests/fields.ts';
import type { Paging } from '../platform/requests/paging.ts';
import type { CallContext, Implementation } from '../platform/rpc.ts';
import { listSized } from '../platform/statements/sized-rows.ts';
import { holdsInPart, isLimited, lackedForAll, visibilityOf, type VisibleDevices } from '../platform/visibility.ts';
import type { DeviceFacts } from '../policies/inheritance.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';
import type { WebhookSecrets } from '../webhooks/sending/webhook-secrets.ts';
import { compile } from './cel/cel-expression.ts';
import { bind, givenPoint } from './evaluation/bindings.ts';
import {
  checkExpression,
  checkExpressions,
  type GivenRule,
  toActions,
  toDefinition,
  toGiven,
  toRule,
} from './rules/rule-fields.ts';
import {
  deleteRule,
  getRule,
  insertRule,
  listRules,
  raiseRevision,
  type RuleDefinition,
  type RuleRow,
  type StoredAction,
  updateRule,
} from './rules/rule-store.ts';

/** Dependencies of the handlers. */
export interface RuleParts {
  readonly database: Database;
  readonly paging: Paging;
  readonly profiles: TransactionalProfileReader;
  readonly devices: { lookup(tenantId: string, ids: readonly string[]): Promise<ReadonlyMap<string, DeviceFacts>> };
  readonly visibleDevices: VisibleDevices;
  readonly guard: OutboundGuard;
  readonly secrets: WebhookSecrets;
  readonly clock: Clock;
}

/** Rules of a page that waits for no turn: the parameters of the commands of one take up to 640 KiB. */
const smallPage = 2;

/** Expressions that are checked or tried at once, which takes up to a tenth of a second each, and those of a tenant that wait. */
const expressionsAtOnce = {
  ...{ total: 1, perOwner: 1, waitingPerOwner: 64 },
  refusal: () => resourceExhausted('too many expressions are being checked or tried', 1),
};

const updatable = [
  ...(['name', 'expression', 'profile_id', 'device_group_id', 'severity', 'alarm_type', 'clear_expression'] as const),
  ...(['for_seconds', 'cooldown_seconds', 'actions', 'enabled'] as const),
];

/** The handlers. */
export function ruleHandlers(parts: RuleParts): Implementation<typeof RulesService> {
  const { database, paging, profiles, devices, visibleDevices, guard, secrets, clock } = parts;
  const turns = new FairSlots(expressionsAtOnce);

  /** Does work with expressions, of which all together takes at most half of the time. */
  const inTurn = <T>(tenantId: string, work: () => T): Promise<T> =>
    turns.run(tenantId, async () => {
      const began = performance.now();
      try {
        return work();
      } finally {
        await sleep(performance.now() - began);
      }
    });

  const checkReferences = async (tx: Transaction, tenantId: string, rule: RuleDefinition): Promise<void> => {
    // Locked, so that neither is deleted before the rule is there.
    const profile =
      rule.profile_id === null || (await profiles.getWithin(tx, tenantId, rule.profile_id, 'FOR KEY SHARE'));
    if (!profile) throw notFound('profile_id');
    const groups = rule.device_group_id === null ? [] : [rule.device_group_id];
    if ((await unknownGroups(tx, tenantId, groups)).length > 0) throw notFound('device_group_id');
  };

  /** Returns the device. An expression reveals its name and tags, so the caller must be allowed to read it. */
  const readableDevice = async (deviceId: string, { tenantId, caller }: CallContext): Promise<DeviceFacts> => {
    const visibility = visibilityOf(caller, 'devices:read');
    if (!holdsInPart(caller, 'devices:read')) {
      throw permissionDenied('point.device_id: the scope devices:read is required');
    }
    const isVisible = !isLimited(visibility) || (await visibleDevices(tenantId, [deviceId], visibility)).has(deviceId);
    const device = isVisible ? (await devices.lookup(tenantId, [deviceId])).get(deviceId) : undefined;
    if (!device) throw notFound('point.device_id');
    return device;
  };

  const setEnabled = (ruleId: string, enabled: boolean, context: CallContext) =>
    database.tenant(context.tenantId, async (tx) => {
      const { tenantId } = context;
      const id = idField('rule', ruleId);
      await raiseRevision(tx, tenantId);
      await refuseLosses(tx, context.caller);
      const before = await getRule(tx, tenantId, id);
      if (enabled) checkRights(before.actions, context);
      return toRule(
        before.enabled === enabled ? before : await updateRule(tx, tenantId, before, { ...before, enabled }),
        context.caller,
      );
    });

  return {
    createRule: async (request, context) => {
      const { tenantId } = context;
      const actions = toActions(request.actions, { tenantId, guard, secrets, before: [] });
      checkRights(actions, context);
      const given = { ...request, severity: request.severity, enabled: request.enabled ?? true };
      const definition = toDefinition(given, actions);
      await inTurn(tenantId, () => checkExpressions(request));
      return database.tenant(tenantId, async (tx) => {
        await checkReferences(tx, tenantId, definition);
        const inserted = await insertRule(tx, tenantId, newId(), definition);
        await refuseLosses(tx, context.caller);
        return toRule(inserted, context.caller);
      });
    },

    getRule: async (request, { tenantId, caller }) => {
      const ruleId = idField('rule', request.ruleId);
      return toRule(await database.read(tenantId, (tx) => getRule(tx, tenantId, ruleId)), caller);
    },

    listRules: async (request, { tenantId, caller }) => {
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'rules', request.enabled],
        smallPage,
        cursorOf: (row: RuleRow) => row.rule_id,
        read: (tx, after, room) => listRules(tx, tenantId, request.enabled, after, room),
        toItem: (row) => toRule(row, caller),
      });
      return { rules: items, nextPageToken };
    },

    updateRule: async (request, context) => {
      const { tenantId } = context;
      const ruleId = idField('rule', request.ruleId);
      const fields = updatedFields(request.updateMask, updatable);
      const expression = fields.has('expression') ? (request.expression ?? '') : undefined;
      const clearExpression = fields.has('clear_expression') ? request.clearExpression : undefined;
      // Before the transaction, which would keep a connection and the tenant's rules while it waits. The others are checked already.
      if (expression !== undefined || clearExpression) {
        await inTurn(tenantId, () => checkExpressions({ expression, clearExpression }));
      }
      return database.tenant(tenantId, async (tx) => {
        await raiseRevision(tx, tenantId);
        await refuseLosses(tx, context.caller);
        const before = await getRule(tx, tenantId, ruleId);
        if (fields.size === 0) return toRule(before, context.caller);
        const actions = fields.has('actions')
          ? toActions(request.actions, { tenantId, guard, secrets, before: before.actions })
          : before.actions;
        const onlyDisables = fields.size === 1 && request.enabled === false;
        // Another expression or group sends the commands that the rule already had to other devices, or at other times.
        if (!onlyDisables) checkRights(actions, context);
        const definition = toDefinition(merged(before, request, fields), actions);
        await checkReferences(tx, tenantId, definition);
        return toRule(await updateRule(tx, tenantId, before, definition), context.caller);
      });
    },

    deleteRule: async (request, { tenantId }) => {
      const ruleId = idField('rule', request.ruleId);
      await database.tenant(tenantId, (tx) => deleteRule(tx, tenantId, ruleId));
      return {};
    },

    enableRule: (request, context) => setEnabled(request.ruleId, true, context),

    disableRule: (request, context) => setEnabled(request.ruleId, false, context),

    validateRule: async (request, { tenantId }) => {
      const compiled = await inTurn(tenantId, () => compile(request.expression));
      return 'errors' in compiled ? { valid: false, errors: compiled.errors } : { valid: true };
    },

    testRule: async (request, context) => {
      const { tenantId } = context;
      const evaluate = await inTurn(tenantId, () => checkExpression('expression', request.expression));
      if (!request.point) throw invalidArgument('point is required');
      const now = new Date(clock.now());
      const point = givenPoint('point', request.point, now);
      const previous = request.previous && givenPoint('previous', request.previous, now);
      const { deviceId } = request.point;
      const device = deviceId === '' ? undefined : await readableDevice(deviceId, context);
      const outcome = await inTurn(tenantId, () => evaluate(bind(device, point, previous)));
      return typeof outcome === 'boolean' ? { matched: outcome } : { matched: false, error: outcome.error };
    },
  };
}

/** What a rule tells its author of any device: by alarms and webhooks, which have its points, and by the number of matches. */
const told = ['devices:read', 'telemetry:read'] as const;

/** A rule reads and commands devices, whichever they are, on behalf of its author, who must be allowed to. */
function checkRights(actions: readonly StoredAction[], { caller }: CallContext): void {
  if (actions.some(({ kind }) => kind === 'rpc') && !caller.scopes.has('rpc:write')) {
    throw permissionDenied('actions: the scope rpc:write is required for rpc');
  }
  const lacking = lackedForAll(caller, told);
  if (lacking.length > 0) {
    throw permissionDenied(`a rule reads the points of all devices: ${lacking.join(', ')} for all devices is required`);
  }
}

/** Returns the fields after an update. */
function merged(
  before: RuleRow,
  request: UpdateRuleRequest,
  fields: ReadonlySet<(typeof updatable)[number]>,
): GivenRule {
  const base = toGiven(before);
  const pick = <T>(field: (typeof updatable)[number], given: T, old: T): T => (fields.has(field) ? given : old);
  return {
    name: pick('name', request.name ?? '', base.name),
    expression: pick('expression', request.expression ?? '', base.expression),
    profileId: pick('profile_id', request.profileId ?? '', base.profileId),
    deviceGroupId: pick('device_group_id', request.deviceGroupId ?? '', base.deviceGroupId),
    severity: pick('severity', request.severity, base.severity),
    alarmType: pick('alarm_type', request.alarmType ?? '', base.alarmType),
    clearExpression: pick('clear_expression', request.clearExpression ?? '', base.clearExpression),
    forSeconds: pick('for_seconds', request.forSeconds ?? 0, base.forSeconds),
    cooldownSeconds: pick('cooldown_seconds', request.cooldownSeconds ?? 0, base.cooldownSeconds),
    enabled: pick('enabled', request.enabled ?? true, base.enabled),
  };
}
