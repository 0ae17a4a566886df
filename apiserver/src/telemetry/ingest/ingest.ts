// Handles ingest requests: validates each point, stores the accepted ones durably, then notifies subscribers.
import type { Clock } from '../../platform/clock.ts';
import { KeyedMutex } from '../../platform/concurrency/keyed-mutex.ts';
import type { Database } from '../../platform/database/database.ts';
import { failedPrecondition, invalidArgument, KelletError } from '../../platform/errors.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { maximumPoints } from '../kernel/scanned-request.ts';
import type { Devices } from '../points/devices.ts';
import { type AcceptedPoint, isRejection, type Rejection } from '../points/validate.ts';
import { NotTaken } from '../write/append.ts';
import type { TelemetryWriter } from '../write/group-commit.ts';
import type { IdempotencyRow } from '../write/idempotency-keys.ts';
import type { AnchorQuota } from './anchor-quota.ts';
import { type IdempotencyScope, idempotencyScope, keptResponse, requestHash } from './idempotency.ts';
import type { KeptErrors } from './kept-errors.ts';
import { type Grant, type PointQuota, quotaMessage, usedUp } from './point-quota.ts';
import type { Submission } from './submission.ts';

/** Requests of one Idempotency-Key that run or wait: attempts of one client, of which all but the first are in vain. */
const maximumWaiting = 16;

/** Limits of a request. */
const requestLimits = { points: maximumPoints, errors: 100 } as const;

/** Why a point was rejected (kellet.v1.PointError). */
export interface PointError extends Rejection {
  /** Position in the request. */
  readonly index: number;
}

/** kellet.v1.IngestResponse */
export interface IngestResult {
  readonly accepted: number;
  readonly rejected: number;
  readonly errors: readonly PointError[];
}

/** Dependencies of ingest. */
export interface IngestDependencies {
  readonly database: Database;
  readonly devices: Devices;
  readonly writer: TelemetryWriter;
  readonly clock: Clock;
  readonly anchorQuota: AnchorQuota;
  readonly pointQuota: PointQuota;
  readonly keptErrors: KeptErrors;
  /** Called for each rejected point; `deviceId` is empty if it named no device of the tenant. */
  readonly rejected: (tenantId: string, deviceId: string) => void;
}

/** Accepts requests of points. */
export class Ingest {
  private readonly dependencies: IngestDependencies;
  /** Turns of requests that carry the same Idempotency-Key. */
  private readonly turns = new KeyedMutex(maximumWaiting);

  constructor(dependencies: IngestDependencies) {
    this.dependencies = dependencies;
  }

  /**
   * Resolves once all accepted points are durable. Throws INVALID_ARGUMENT for a request above a limit,
   * FAILED_PRECONDITION for an Idempotency-Key used by a different request, RESOURCE_EXHAUSTED if points_per_day leaves
   * room for none of the points or too many requests of an Idempotency-Key wait, and UNAVAILABLE if the database stays
   * unavailable for too long.
   */
  async take(points: Submission, context: CallContext): Promise<IngestResult> {
    if (points.count > requestLimits.points)
      throw invalidArgument(`points: at most ${requestLimits.points} per request`);
    const scope = idempotencyScope(context);
    if (!scope) return this.store(points, context, undefined);
    const hash = requestHash(points.given.map((p) => [p.deviceId, p.timestamp, p.numericValues, p.stringValues]));
    const key = JSON.stringify([scope.tenantId, scope.holder, scope.idempotencyKey]);
    // The second finds the response stored by the first. In one flush they would be refused together.
    return this.turns.run(key, () => this.takeOnce(points, context, scope, hash));
  }

  private async takeOnce(
    points: Submission,
    context: CallContext,
    scope: IdempotencyScope,
    hash: string,
  ): Promise<IngestResult> {
    const kept = await keptResponse(this.dependencies.database, scope, hash);
    if (kept !== undefined) return JSON.parse(kept) as IngestResult;
    try {
      return await this.store(points, context, { ...scope, requestHash: hash });
    } catch (error) {
      // Another process stored a response under the same key first.
      if (!(error instanceof KelletError) || error.code !== 'ALREADY_EXISTS') throw error;
      const theirs = await keptResponse(this.dependencies.database, scope, hash);
      if (theirs === undefined) throw failedPrecondition('the Idempotency-Key is in use');
      return JSON.parse(theirs) as IngestResult;
    }
  }

  private async store(
    points: Submission,
    context: CallContext,
    idempotency: Omit<IdempotencyRow, 'response'> | undefined,
  ): Promise<IngestResult> {
    const { devices, writer, clock, rejected, anchorQuota, pointQuota, keptErrors } = this.dependencies;
    const known = await devices.lookupEach(context.tenantId, points.deviceIds, points.devices);
    const now = clock.now();
    let accepted: AcceptedPoint[] = [];
    let acceptedIndexes: number[] = [];
    const errors: PointError[] = [];
    let rejections = 0;
    const reject = (index: number, code: Rejection['code'], message: string) => {
      rejections += 1;
      if (errors.length < requestLimits.errors) errors.push({ index, code, message });
      rejected(context.tenantId, known[index]?.deviceId ?? '');
    };
    for (let index = 0; index < points.count; index += 1) {
      const judged = points.judge(index, known[index], context.caller, now);
      if (isRejection(judged)) reject(index, judged.code, judged.message);
      else {
        accepted.push(judged);
        acceptedIndexes.push(index);
      }
    }
    /** Rejects the accepted points that are not `kept`. */
    const keepOnly = (kept: readonly boolean[], message: string) => {
      for (const [at, index] of acceptedIndexes.entries()) if (!kept[at]) reject(index, 'RESOURCE_EXHAUSTED', message);
      accepted = accepted.filter((_, at) => kept[at]);
      acceptedIndexes = acceptedIndexes.filter((_, at) => kept[at]);
      errors.sort((a, b) => a.index - b.index);
    };
    let grant: Grant | undefined;
    if (accepted.length > 0) {
      const taken = pointQuota.take(context.tenantId, accepted.length);
      // Mostly granted at once, from memory.
      grant = taken instanceof Promise ? await taken : taken;
      const { granted } = grant;
      if (granted < accepted.length) {
        pointQuota.refuse(grant, accepted.length - granted);
        if (granted === 0) {
          for (const { device } of accepted) rejected(context.tenantId, device.deviceId);
          throw usedUp(grant);
        }
        keepOnly(
          accepted.map((_, at) => at < granted),
          quotaMessage,
        );
      }
    }
    const anchors = accepted.filter(({ device }) => device.anchoringMode === 'per_event').length;
    let left = anchors === 0 ? 0 : await anchorQuota.reserve(context.tenantId, anchors);
    if (left < anchors) {
      pointQuota.giveBack(grant!, anchors - left);
      // The first points get the remaining anchors. Points above the quota would never be proven, so they are rejected.
      keepOnly(
        accepted.map(({ device }) => device.anchoringMode !== 'per_event' || left-- > 0),
        'anchors_per_day of the tenant is used up',
      );
    }
    const result = (): IngestResult => ({ accepted: points.count - rejections, rejected: rejections, errors });
    if (accepted.length === 0 && !idempotency) return result();
    if (idempotency) errors.splice(keptErrors.most(context.tenantId, errors));
    const row = idempotency && { ...idempotency, response: JSON.stringify(result()) };
    const { refused } = await writer.append(accepted, row).catch((error: unknown) => {
      if (grant && error instanceof NotTaken) pointQuota.giveBack(grant, accepted.length);
      throw error;
    });
    // Not if this fails: the points may still be on their way.
    points.release();
    for (const at of refused) reject(acceptedIndexes[at]!, 'INTERNAL', 'the point could not be stored');
    return result();
  }
}
