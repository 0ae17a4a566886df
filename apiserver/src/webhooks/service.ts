// Webhooks: the events of a tenant, sent to its own servers.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import {
  WebhookDelivery_Status as Status,
  type WebhookDeliverySchema,
  type WebhookSchema,
  WebhookService,
} from '@kellet/proto/es/kellet/v1/webhook_pb';
import { refuseLosses } from '../auth/credentials/refuse-losses.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import type { Transaction } from '../platform/database/database.ts';
import { retryConflicts } from '../platform/database/retry-conflicts.ts';
import { invalidArgument, permissionDenied } from '../platform/errors.ts';
import { auditEventType, eventNames } from '../platform/events/subjects.ts';
import { newId } from '../platform/ids.ts';
import { parseOutboundHosts } from '../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../platform/outbound/outbound-guard.ts';
import { idField, textField, updatedFields } from '../platform/requests/fields.ts';
import type { Caller, Implementation } from '../platform/rpc.ts';
import { holdsEveryScope } from '../platform/scopes.ts';
import { lackedForAll, toldByEvents } from '../platform/visibility.ts';
import { urlProblems } from './sending/webhook-call.ts';
import { WebhookSecrets } from './sending/webhook-secrets.ts';
import {
  deleteWebhook,
  type DeliveryRow,
  findWebhook,
  insertWebhook,
  keepsEvents,
  listDeliveries,
  listWebhooks,
  resendDelivery,
  updateWebhook,
  type WebhookRow,
} from './webhook-store.ts';
import { createWebhookWorker, type WebhookWorker } from './webhook-worker.ts';

/** Creates the service. */
export function createWebhooks(
  platform: Pick<Platform, 'config' | 'database' | 'paging' | 'logger' | 'metrics'>,
): ServiceModule {
  const { config } = platform;
  const guard = new OutboundGuard(parseOutboundHosts(config.webhookHosts));
  const secrets = new WebhookSecrets(config.controlSecret);
  const worker = createWebhookWorker({ ...platform, guard, secrets });
  return {
    register: (registry) => registry.register(WebhookService, handlers({ ...platform, guard, secrets, worker })),
    start: async () => worker.start(),
    stop: () => worker.stop(),
  };
}

interface WebhookParts extends Pick<Platform, 'database' | 'paging'> {
  readonly guard: OutboundGuard;
  readonly secrets: WebhookSecrets;
  readonly worker: Pick<WebhookWorker, 'wake'>;
}

function handlers(parts: WebhookParts): Implementation<typeof WebhookService> {
  const { database, paging, guard, secrets, worker } = parts;

  const checkedUrl = (value: string): string => {
    const url = textField('url', value, { minimum: 1, maximum: 2048 });
    const problem = guard.problemOf(url);
    if (problem) throw invalidArgument(`url ${urlProblems[problem]}`);
    return url;
  };
  const sealed = (tenantId: string, value: string): string =>
    secrets.seal(tenantId, textField('secret', value, { maximum: 256 }));

  return {
    createWebhook: async (request, { tenantId, caller }) => {
      const definition = {
        ...{ url: checkedUrl(request.url), secret: sealed(tenantId, request.secret) },
        ...{ events: checkedEvents(request.events), enabled: request.enabled ?? true },
      };
      checkMayReceive(caller, definition.events);
      const row = await database.tenant(tenantId, async (tx) => {
        const inserted = await insertWebhook(tx, tenantId, newId(), definition);
        await refuseLosses(tx, caller);
        return inserted;
      });
      return toWebhook(row);
    },

    getWebhook: async (request, { tenantId }) => {
      const webhookId = idField('webhook', request.webhookId);
      return toWebhook(await database.read(tenantId, (tx) => findWebhook(tx, tenantId, webhookId)));
    },

    listWebhooks: async (request, { tenantId }) => {
      const scope = [tenantId, 'webhooks'];
      const page = paging.open<string>(request, scope);
      const rows = await database.read(tenantId, (tx) => listWebhooks(tx, tenantId, page.after, page.size + 1));
      const closed = paging.close(rows, page, scope, (row) => row.webhook_id);
      return { webhooks: closed.rows.map(toWebhook), nextPageToken: closed.nextPageToken };
    },

    updateWebhook: async (request, { tenantId, caller }) => {
      const webhookId = idField('webhook', request.webhookId);
      const fields = updatedFields(request.updateMask, ['url', 'secret', 'events', 'enabled'] as const);
      const changes = {
        ...(fields.has('url') ? { url: checkedUrl(request.url ?? '') } : {}),
        ...(fields.has('secret') ? { secret: sealed(tenantId, request.secret ?? '') } : {}),
        ...(fields.has('events') ? { events: checkedEvents(request.events) } : {}),
        ...(fields.has('enabled') ? { enabled: request.enabled ?? true } : {}),
      };
      const onlyDisables = fields.size === 1 && changes.enabled === false;
      const row = await database.tenant(tenantId, async (tx) => {
        const before = await findWebhook(tx, tenantId, webhookId, 'FOR UPDATE');
        const after = { ...before, ...changes };
        if (!onlyDisables) await checkMayChange(tx, tenantId, caller, before, after);
        await refuseLosses(tx, caller);
        return fields.size === 0 ? before : updateWebhook(tx, tenantId, webhookId, after);
      });
      worker.wake();
      return toWebhook(row);
    },

    deleteWebhook: async (request, { tenantId }) => {
      const webhookId = idField('webhook', request.webhookId);
      // The sweep of its deliveries locks in another order.
      await retryConflicts(() => database.tenant(tenantId, (tx) => deleteWebhook(tx, tenantId, webhookId)));
      return {};
    },

    listWebhookDeliveries: async (request, { tenantId }) => {
      const webhookId = idField('webhook', request.webhookId);
      const scope = [tenantId, 'deliveries', webhookId];
      const page = paging.open<string>(request, scope);
      const rows = await database.read(tenantId, async (tx) => {
        await findWebhook(tx, tenantId, webhookId);
        return listDeliveries(tx, tenantId, webhookId, page.after, page.size + 1);
      });
      const closed = paging.close(rows, page, scope, (row) => row.position);
      return { deliveries: closed.rows.map(toDelivery), nextPageToken: closed.nextPageToken };
    },

    resendWebhookDelivery: async (request, { tenantId }) => {
      const webhookId = idField('webhook', request.webhookId);
      const deliveryId = idField('delivery', request.deliveryId);
      const row = await database.tenant(tenantId, async (tx) => {
        await findWebhook(tx, tenantId, webhookId);
        return resendDelivery(tx, tenantId, webhookId, deliveryId);
      });
      worker.wake();
      return toDelivery(row);
    },
  };
}

/**
 * Throws PERMISSION_DENIED if a changed webhook would send events of the audit log, which the caller may not read. A new address
 * receives what the webhook lists, and also those that wait from when it listed more, and those that are sent again.
 */
async function checkMayChange(
  tx: Transaction,
  tenantId: string,
  caller: Caller,
  before: WebhookRow,
  after: Pick<WebhookRow, 'events'>,
): Promise<void> {
  const isKept = !holdsEveryScope(caller) && (await keepsEvents(tx, tenantId, before.webhook_id, auditEventType));
  checkMayReceive(caller, [...before.events, ...after.events, ...(isKept ? [auditEventType] : [])]);
}

/**
 * Throws PERMISSION_DENIED if the caller may not read what events tell of all devices, or if the events include those of the audit
 * log, which it may not read.
 */
function checkMayReceive(caller: Caller, events: readonly string[]): void {
  const lacking = lackedForAll(caller, toldByEvents);
  if (lacking.length > 0) {
    throw permissionDenied(`a webhook tells of all devices: ${lacking.join(', ')} for all devices is required`);
  }
  if (holdsEveryScope(caller) || !events.some((event) => event === '*' || event === auditEventType)) return;
  throw permissionDenied('every scope is required for events of the audit log: list others by name');
}

function checkedEvents(events: readonly string[]): string[] {
  const unknown = events.find((event) => event !== '*' && !eventNames.includes(event));
  if (unknown !== undefined) {
    throw invalidArgument(`events: ${JSON.stringify(unknown)} must be one of *, ${eventNames.join(', ')}`);
  }
  if (events.length === 0) throw invalidArgument('events must name at least one event, or *');
  return [...new Set(events)];
}

const toWebhook = (row: WebhookRow): MessageInitShape<typeof WebhookSchema> => ({
  ...{ webhookId: row.webhook_id, url: row.url, events: row.events, enabled: row.enabled, lastError: row.last_error },
  createdAt: timestampFromDate(row.created_at),
  updatedAt: timestampFromDate(row.updated_at),
});

const toDelivery = (row: DeliveryRow): MessageInitShape<typeof WebhookDeliverySchema> => ({
  ...{ deliveryId: row.delivery_id, eventId: row.event_id, subject: row.subject, status: Status[row.status] },
  ...{ attempts: row.attempts, lastStatus: row.last_status },
  nextAt: row.next_at ? timestampFromDate(row.next_at) : undefined,
  createdAt: timestampFromDate(row.created_at),
});
