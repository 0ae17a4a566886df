// Takes queued actions: calls webhooks and sends commands, at least once, with retries. Any number of processes share the
// queue.
import { isReservedMethod } from '../../device-link/commands/command-method.ts';
import { commandLimit, enqueueCommand } from '../../device-link/commands/commands.ts';
import { findDevice } from '../../device-registry/devices/devices.ts';
import { FairWorker } from '../../platform/background/fair-worker.ts';
import { Loop } from '../../platform/background/loop.ts';
import type { Database } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, readGauge, type Registry } from '../../platform/observability/metrics.ts';
import type { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { maxAttempts } from '../../webhooks/sending/retry-schedule.ts';
import { callWebhook, WebhookError } from '../../webhooks/sending/webhook-call.ts';
import type { WebhookSecrets } from '../../webhooks/sending/webhook-secrets.ts';
import {
  claimActions,
  type ClaimedAction,
  completeAction,
  countDeadActions,
  dropAction,
  failAction,
  forgetDeadActions,
} from './action-queue.ts';

/** Dependencies of the worker. */
export interface WorkerParts {
  readonly database: Database;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly guard: OutboundGuard;
  readonly secrets: WebhookSecrets;
}

const maxConcurrent = 32;
const maxOfTenant = 4;
const sweepMilliseconds = 3_600_000;

/** How long a device may take to fetch the command of a rule; as for other commands that are not persistent. */
const commandSeconds = 60;

/** An action that no further attempt can complete. */
class FinalError extends Error {}

/** Works through the queue in the background. */
export class ActionWorker {
  private readonly parts: WorkerParts;
  private readonly actions: Counter<'kind' | 'result'>;
  private readonly work: FairWorker<ClaimedAction>;
  private readonly sweep: Loop;

  constructor(parts: WorkerParts) {
    this.parts = parts;
    const { database, logger, metrics } = parts;
    this.work = new FairWorker(logger, {
      ...{ name: 'actions of rules', most: maxConcurrent, mostOfKey: maxOfTenant },
      keyOf: (claim) => claim.tenant_id,
      tenantOf: (claim) => claim.tenant_id,
      claim: (limit, except, busy) =>
        database.system((tx) => claimActions(tx, { limit, perTenant: maxOfTenant, except, busy })),
      settle: (claim, signal) => this.settle(claim, signal),
    });
    this.sweep = new Loop(logger, 'sweep of dead actions', sweepMilliseconds, () => database.system(forgetDeadActions));
    this.actions = counter(metrics, 'kellet_rule_actions_total', 'Attempts of actions of rules, by kind and result.', [
      'kind',
      'result',
    ]);
    readGauge(parts, 'kellet_rule_actions_dead', 'Actions of rules given up within the last 30 days.', () =>
      database.systemRead(countDeadActions),
    );
  }

  start(): void {
    this.work.start();
    this.sweep.start();
  }

  /** Looks for actions at once. */
  wake(): void {
    this.work.wake();
  }

  /** Cuts off running calls, which are repeated later, and resolves when they have ended. */
  async stop(): Promise<void> {
    await Promise.all([this.work.stop(), this.sweep.stop()]);
  }

  private async settle(claim: ClaimedAction, signal: AbortSignal): Promise<void> {
    const { database, logger } = this.parts;
    const { tenant_id: tenantId, rule_id: ruleId, action_id: actionId, attempts } = claim;
    const { kind } = claim.action;
    try {
      if (claim.is_void) {
        await database.tenant(tenantId, (tx) => dropAction(tx, tenantId, claim));
        this.actions.inc({ kind, result: 'dropped' });
        return;
      }
      await this.take(claim, signal);
      await database.tenant(tenantId, (tx) => completeAction(tx, tenantId, claim));
      this.actions.inc({ kind, result: 'taken' });
    } catch (error) {
      // When the process stops or the database is away, the claim runs out and the action is taken again.
      if (signal.aborted) return;
      const isExpected = [WebhookError, FinalError, KelletError].some((kind) => error instanceof kind);
      const message = isExpected ? (error as Error).message : 'internal error';
      const isDead = error instanceof FinalError || attempts >= maxAttempts;
      const ids = { tenantId, ruleId, actionId, deviceId: claim.device_id, attempts };
      logger[isExpected ? 'info' : 'warn'](
        { ...(isExpected ? { reason: message } : { err: error }), ...ids, kind },
        isDead ? 'an action of a rule is given up' : 'an action of a rule failed',
      );
      this.actions.inc({ kind, result: isDead ? 'dead' : 'failed' });
      await database
        .tenant(tenantId, (tx) => failAction(tx, tenantId, claim, `${describe(claim)}: ${message}`, isDead))
        .catch((failure: unknown) => logger.warn({ err: failure, ...ids }, 'the failure of an action was not stored'));
    }
  }

  private async take(claim: ClaimedAction, signal: AbortSignal): Promise<void> {
    const { database, guard, secrets } = this.parts;
    const { tenant_id: tenantId, device_id: deviceId, action } = claim;
    if (action.kind === 'webhook') {
      const secret = secrets.open(tenantId, action.secret);
      await callWebhook({ tenantId, url: action.url, secret, body: claim.event }, guard, signal);
      return;
    }
    // An earlier release accepted rules with such an action.
    if (isReservedMethod(action.method)) throw new FinalError('only Kellet itself sends this method');
    const isSent = await database.tenant(tenantId, async (tx) => {
      // Held, so that a deletion at the same time cancels this command too.
      if (!(await findDevice(tx, tenantId, deviceId, 'FOR SHARE'))) return false;
      await enqueueCommand(tx, {
        ...{ tenantId, deviceId, method: action.method, params: action.params },
        ...{ persistent: false, expiresInSeconds: commandSeconds, idempotencyKey: `rule-action/${claim.action_id}` },
      });
      await checkRoom(tx, [tenantId, deviceId], commandLimit, 1);
      return true;
    });
    if (!isSent) throw new FinalError('the device is deleted');
  }
}

/** Names an action without what may be secret in a URL: its path, query, user and password. */
const describe = ({ action }: ClaimedAction): string =>
  action.kind === 'webhook' ? `webhook ${new URL(action.url).host}` : `rpc ${action.method}`;
