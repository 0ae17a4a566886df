// The points of a request: as objects, or as scanned from its body.
import type { TelemetrySchema } from '@kellet/proto/es/kellet/v1/common_pb';
import type { IngestRequest } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import type { Caller } from '../../platform/rpc.ts';
import { acceptScanned, RowTenant } from '../kernel/row-point.ts';
import { longestTenantId, scannedValues, type ScannedPoint } from '../kernel/scan.ts';
import { schemaFit } from '../kernel/schema-fit.ts';
import { scannedPoints } from '../kernel/scanned-request.ts';
import type { TelemetryDevice } from '../points/devices.ts';
import { schemaViolation } from '../points/schema.ts';
import {
  isTooFarAhead,
  mayWrite,
  validatePoint,
  type AcceptedPoint,
  type GivenPoint,
  type Rejection,
} from '../points/validate.ts';

/** The points of a request. */
export interface Submission {
  readonly count: number;
  /** The points as objects. */
  readonly given: readonly GivenPoint[];
  /** The device of each point, as requested. */
  readonly deviceIds: readonly string[];
  /** Validates a point, given the directory's entry for its device. */
  judge(index: number, device: TelemetryDevice | undefined, caller: Caller, now: number): AcceptedPoint | Rejection;
}

/** Returns the points of a request by a caller of the tenant. */
export function submissionOf(request: IngestRequest, tenantId: string): Submission {
  const scanned = tenantId.length <= longestTenantId ? scannedPoints(request) : undefined;
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
}

class ScannedSubmission implements Submission {
  readonly deviceIds: readonly string[];
  private readonly request: IngestRequest;
  private readonly points: readonly ScannedPoint[];
  private readonly tenant: RowTenant;

  constructor(request: IngestRequest, points: readonly ScannedPoint[], tenant: RowTenant) {
    this.request = request;
    this.points = points;
    this.tenant = tenant;
    this.deviceIds = points.map(({ deviceId }) => deviceId);
  }

  get count(): number {
    return this.points.length;
  }

  get given(): readonly GivenPoint[] {
    return this.request.points;
  }

  judge(index: number, device: TelemetryDevice | undefined, caller: Caller, now: number): AcceptedPoint | Rejection {
    const point = this.points[index]!;
    const { time } = point;
    const isAccepted =
      device !== undefined &&
      mayWrite(caller, device) &&
      time.seconds >= 0 &&
      !isTooFarAhead(time, now) &&
      (device.telemetrySchema === undefined || conforms(point, device.telemetrySchema));
    return isAccepted
      ? acceptScanned(point, this.tenant, device)
      : validatePoint(this.given[index]!, device, caller, now);
  }
}

/** Reports whether the values of a scanned point conform to a schema. */
function conforms(point: ScannedPoint, schema: TelemetrySchema): boolean {
  const fit = schemaFit(schema, point.form);
  return fit === 'all' || (fit === 'values' && schemaViolation(schema, scannedValues(point)) === undefined);
}
