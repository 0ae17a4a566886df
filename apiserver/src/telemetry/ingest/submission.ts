// The points of a request: as objects, or as scanned from its body.
import type { TelemetrySchema } from '@kellet/proto/es/kellet/v1/common_pb';
import type { IngestRequest } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import type { Caller } from '../../platform/rpc.ts';
import { type RowPoint, RowTenant } from '../kernel/row-point.ts';
import { longestTenantId, type ScannedBody } from '../kernel/scan.ts';
import { scannedBody } from '../kernel/scanned-request.ts';
import { schemaFit } from '../kernel/schema-fit.ts';
import type { DeviceReference, TelemetryDevice } from '../points/devices.ts';
import { schemaViolation } from '../points/schema.ts';
import {
  type AcceptedPoint,
  type GivenPoint,
  isTooFarAhead,
  mayWrite,
  type Rejection,
  validatePoint,
} from '../points/validate.ts';

/** The points of a request. */
export interface Submission {
  readonly count: number;
  /** The points as objects. */
  readonly given: readonly GivenPoint[];
  /** The device of each point, as requested. */
  readonly deviceIds: readonly string[];
  /** The device of each point, if at hand. */
  readonly devices?: readonly DeviceReference[];
  /** Validates a point, given the directory's entry for its device. */
  judge(index: number, device: TelemetryDevice | undefined, caller: Caller, now: number): AcceptedPoint | Rejection;
  /** Lets the memory of the points be used again. To be called once they are durable and nothing refers to them any more. */
  release(): void;
}

/** Returns the points of a request by a caller of the tenant. */
export function submissionOf(request: IngestRequest, tenantId: string): Submission {
  const scanned = tenantId.length <= longestTenantId ? scannedBody(request) : undefined;
  return scanned
    ? new ScannedSubmission(request, scanned, new RowTenant(tenantId))
    : new GivenSubmission(request.points);
}

/** Points as objects: what the result of scanned ones must equal. */
export class GivenSubmission implements Submission {
  readonly given: readonly GivenPoint[];
  readonly deviceIds: readonly string[];

  constructor(points: readonly GivenPoint[]) {
    this.given = points;
    this.deviceIds = points.map(({ deviceId }) => deviceId);
  }

  get count(): number {
    return this.given.length;
  }

  judge(index: number, device: TelemetryDevice | undefined, caller: Caller, now: number): AcceptedPoint | Rejection {
    return validatePoint(this.given[index]!, device, caller, now);
  }

  release(): void {}
}

class ScannedSubmission implements Submission {
  readonly deviceIds: readonly string[];
  readonly devices: readonly DeviceReference[];
  private readonly request: IngestRequest;
  private readonly scanned: ScannedBody;
  private readonly tenant: RowTenant;

  constructor(request: IngestRequest, scanned: ScannedBody, tenant: RowTenant) {
    this.request = request;
    this.scanned = scanned;
    this.tenant = tenant;
    const { points } = scanned;
    this.deviceIds = points.map(({ id }) => id.text);
    this.devices = points.map(({ id }) => id);
  }

  get count(): number {
    return this.scanned.points.length;
  }

  get given(): readonly GivenPoint[] {
    return this.request.points;
  }

  judge(index: number, device: TelemetryDevice | undefined, caller: Caller, now: number): AcceptedPoint | Rejection {
    const point = this.scanned.points[index]!;
    const { time } = point;
    const isAccepted =
      device !== undefined &&
      mayWrite(caller, device) &&
      time.seconds >= 0 &&
      !isTooFarAhead(time, now) &&
      (device.telemetrySchema === undefined || conforms(point, device.telemetrySchema));
    return isAccepted ? point.accept(this.tenant, device) : validatePoint(this.given[index]!, device, caller, now);
  }

  release(): void {
    for (const area of this.scanned.areas) area.release();
  }
}

/** Reports whether the values of a scanned point conform to a schema. */
function conforms(point: RowPoint, schema: TelemetrySchema): boolean {
  const fit = schemaFit(schema, point.form);
  return fit === 'all' || (fit === 'values' && schemaViolation(schema, point) === undefined);
}
