// The audit service: lists the log, chains what was recorded, and removes what is older than the retention.
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt';
import { AuditService, type ListAuditEventsRequest } from '@kellet/proto/es/kellet/v1/audit_pb';
import type { Config } from '../config/config.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import { chainAllOf, chainNext, eventsAtOnce } from '../platform/audit/audit-chain.ts';
import { auditEventMessage } from '../platform/audit/audit-event.ts';
import {
  type AuditCursor,
  type AuditFilters,
  countPending,
  deleteExpired,
  listAnchors,
  listEvents,
  listLogs,
} from '../platform/audit/audit-store.ts';
import { Loop } from '../platform/background/loop.ts';
import { repeatWhileFull } from '../platform/background/repeat-while-full.ts';
import { auditChannel } from '../platform/database/channels.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { codes, invalidArgument } from '../platform/errors.ts';
import { storedId } from '../platform/ids.ts';
import { readGauge } from '../platform/observability/metrics.ts';
import { textField } from '../platform/requests/fields.ts';
import type { Implementation } from '../platform/rpc.ts';

/** How long after an event was written it is chained, so that several are chained together. */
const gatherMilliseconds = 500;
/** Interval between scans for unchained events that were not announced. */
const chainMilliseconds = 5000;
const expiryMilliseconds = 3600_000;

/** Logs, and events of one log, that are looked at together. */
const logsAtOnce = 500;
const expiredAtOnce = 5000;

/** Creates the service. */
export function createAudit(
  platform: Pick<Platform, 'clock' | 'database' | 'logger' | 'metrics' | 'paging'> & {
    config: Pick<Config, 'auditRetentionDays'>;
  },
): ServiceModule {
  const { config, clock, database, logger, metrics } = platform;
  readGauge({ metrics, logger }, 'kellet_audit_pending', 'Audit events that are not chained yet.', () =>
    database.systemRead(countPending),
  );
  const chaining = new Loop(logger, 'chaining of audit events', chainMilliseconds, async () => {
    return (await chainNext(database, clock)) === eventsAtOnce;
  });
  const loops = [
    chaining,
    new Loop(logger, 'expiry of audit events', expiryMilliseconds, (signal) => {
      return expireAll(database, config.auditRetentionDays, signal);
    }),
  ];
  return {
    register: (registry) => registry.register(AuditService, handlers(platform)),
    start: () => {
      const wake = () => chaining.wakeIn(gatherMilliseconds);
      database.listen([auditChannel], wake, wake);
      for (const loop of loops) loop.start();
      return Promise.resolve();
    },
    stop: async () => {
      await Promise.all(loops.map((loop) => loop.stop()));
    },
  };
}

/** Removes the events of all logs that are older than these many days. */
async function expireAll(database: Database, days: number, signal: AbortSignal): Promise<void> {
  let logs = await database.systemRead((tx) => listLogs(tx, null, logsAtOnce));
  while (logs.length > 0 && !signal.aborted) {
    for (const tenantId of logs) {
      await repeatWhileFull(expiredAtOnce, signal, (limit) =>
        database.system((tx) => deleteExpired(tx, tenantId, days, limit)),
      );
    }
    const last = logs.at(-1)!;
    logs = await database.systemRead((tx) => listLogs(tx, last, logsAtOnce));
  }
}

function handlers({
  clock,
  database,
  paging,
}: Pick<Platform, 'clock' | 'database' | 'paging'>): Implementation<typeof AuditService> {
  return {
    listAuditEvents: async (request, { tenantId, caller }) => {
      const filters = filtersOf(request);
      const { start, end, ...texts } = filters;
      const scope = [tenantId, 'audit-events', ...Object.values(texts), start?.getTime(), end?.getTime()];
      const page = paging.open<AuditCursor>(request, scope);
      // Callers see the events of their own calls.
      if (page.after === undefined) await chainAllOf(database, clock, tenantId);
      const list = (tx: Transaction) => listEvents(tx, tenantId, filters, page.after, page.size + 1);
      // The platform's log has no tenant to whose rows a transaction could be limited.
      return paging.inTurn(tenantId, page, async () => {
        const rows = await (caller.kind === 'platform' ? database.systemRead(list) : database.read(tenantId, list));
        const closed = paging.close(rows, page, scope, ({ cursor }) => cursor);
        return {
          auditEvents: closed.rows.map(({ event }) => auditEventMessage(event)),
          nextPageToken: closed.nextPageToken,
        };
      });
    },

    listAuditAnchors: async (request, { tenantId }) => {
      const scope = [tenantId, 'audit-anchors'];
      const page = paging.open<number>(request, scope);
      const rows = await database.read(tenantId, (tx) => listAnchors(tx, tenantId, page.after, page.size + 1));
      const closed = paging.close(rows, page, scope, ({ sequence }) => sequence);
      return {
        auditAnchors: closed.rows.map(({ sequence, hash, dataHash, time }) => ({
          ...{ sequence, hash, dataHash },
          time: timestampFromDate(time),
        })),
        nextPageToken: closed.nextPageToken,
      };
    },
  };
}

function filtersOf(request: ListAuditEventsRequest): AuditFilters {
  const text = (name: string, value: string): string => textField(name, value, { maximum: 256 });
  return {
    actor: storedId(text('actor', request.actor)),
    action: text('action', request.action),
    resourceId: storedId(text('resource_id', request.resourceId)),
    result: resultFilter(request.result),
    start: request.start && timestampDate(request.start),
    end: request.end && timestampDate(request.end),
  };
}

/** Throws INVALID_ARGUMENT for a result that no event can have, for which an empty list would look like an answer. */
function resultFilter(result: string): string {
  if (result === '' || result === 'OK' || Object.hasOwn(codes, result)) return result;
  throw invalidArgument(`result must be OK or an error code, one of ${Object.keys(codes).join(', ')}`);
}
