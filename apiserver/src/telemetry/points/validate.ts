// Validates a point with a pure chain of checks and returns it in its stored form.
import type { ErrorCode } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';
import type { TelemetryDevice } from './devices.ts';
import { type HashText, leafHash } from './leaf-hashes.ts';
import { type PointValues, writePayload } from './payload.ts';
import { schemaViolation } from './schema.ts';
import { type DeviceTime, parseTimestamp } from './timestamp.ts';

/** Limits of a point. Lengths are bytes of UTF-8. */
export const pointLimits = { keys: 256, keyBytes: 128, textBytes: 4096, secondsAhead: 600 } as const;

/** A point as given in a request (kellet.v1.TelemetryPoint). */
export interface GivenPoint extends PointValues {
  readonly deviceId: string;
  readonly timestamp: string;
}

/** The row of a point as COPY takes it, but for its batch, leaf and arrival (points/point-row.ts). */
export interface EncodedRow {
  readonly bytes: Buffer;
  readonly rowStart: number;
  readonly rowEnd: number;
}

/** An accepted point. */
export interface AcceptedPoint extends PointValues {
  readonly tenantId: string;
  readonly device: TelemetryDevice;
  readonly time: DeviceTime;
  /** RFC 8785 text of the values. */
  readonly payload: string;
  /** The leaf hash. */
  readonly dataHash: HashText;
  /** The result of an update whose point this is (ingest/update-results.ts); undefined: the point was sent. */
  readonly resultId?: string;
  /** Whether the service made the point about itself (ingest/audit-heads.ts): only to be anchored. */
  readonly isOwn?: true;
  /** Its row, if it is encoded already (kernel/). */
  readonly row?: EncodedRow;
  /** Points whose `names` are the same object have the same names. Undefined: only the values can tell. */
  readonly names?: object;
}

/** Why a point was rejected. */
export interface Rejection {
  readonly code: ErrorCode;
  readonly message: string;
}

/**
 * Validates one point. `device` is the directory's entry for its device_id in the caller's tenant, `nowMilliseconds`
 * the time of arrival. The checks run in this order, so that an error reveals no more than the caller may know: existence
 * of the device, permission, content.
 */
export function validatePoint(
  point: GivenPoint,
  device: TelemetryDevice | undefined,
  caller: Pick<Caller, 'kind' | 'tenantId' | 'deviceId'>,
  nowMilliseconds: number,
): AcceptedPoint | Rejection {
  if (!device) return { code: 'NOT_FOUND', message: 'device_id: device not found' };
  if (!mayWrite(caller, device)) return { code: 'PERMISSION_DENIED', message: 'device_id: not a device of this key' };
  const time = parseTimestamp(point.timestamp);
  if (!time) return invalid('timestamp is not RFC 3339, such as 2026-01-31T12:00:00Z');
  if (time.seconds < 0) return invalid('timestamp is before 1970');
  if (isTooFarAhead(time, nowMilliseconds)) return invalid('timestamp is more than ten minutes ahead');
  const violation =
    valueViolation(point) ?? (device.telemetrySchema ? schemaViolation(device.telemetrySchema, point) : undefined);
  if (violation) return invalid(violation);
  const payload = writePayload(point);
  return {
    tenantId: caller.tenantId,
    device,
    time,
    payload,
    dataHash: leafHash(caller.tenantId, device.deviceId, time.seconds, payload),
    numericValues: point.numericValues,
    stringValues: point.stringValues,
  };
}

/** Reports whether a point is too far ahead of the time of its arrival. */
export const isTooFarAhead = (time: DeviceTime, nowMilliseconds: number): boolean =>
  time.seconds * 1000 > nowMilliseconds + pointLimits.secondsAhead * 1000;

/** Reports whether a result of validatePoint is a rejection. */
export const isRejection = (judged: AcceptedPoint | Rejection): judged is Rejection => 'code' in judged;

const invalid = (message: string): Rejection => ({ code: 'INVALID_ARGUMENT', message });

/**
 * Reports whether the caller may write for the device: a device key for its own device and, as a gateway's, for the
 * devices behind it; other callers for the whole tenant.
 */
export function mayWrite(caller: Pick<Caller, 'kind' | 'deviceId'>, device: TelemetryDevice): boolean {
  if (caller.kind !== 'device') return true;
  return device.deviceId === caller.deviceId || device.gatewayDeviceId === caller.deviceId;
}

/**
 * Returns why a point may not have these values, or undefined. `ofName` says the same of a name: points of the service have
 * names that devices may not use.
 */
export function valueViolation(point: PointValues, ofName = nameViolation): string | undefined {
  const numericNames = Object.keys(point.numericValues);
  const textNames = Object.keys(point.stringValues);
  if (numericNames.length + textNames.length > pointLimits.keys) return `more than ${pointLimits.keys} values`;
  for (const name of numericNames) {
    const violation = ofName(name);
    if (violation) return violation;
    if (!Number.isFinite(point.numericValues[name]))
      return `${valuePath('numeric_values', name)} is not a finite number`;
  }
  for (const name of textNames) {
    const violation = ofName(name);
    if (violation) return violation;
    const problem = textProblem(point.stringValues[name]!, pointLimits.textBytes);
    if (problem) return `${valuePath('string_values', name)} ${problem}`;
  }
  return undefined;
}

const valuePath = (field: string, name: string): string => `${field}[${JSON.stringify(name)}]`;

/** Keys that begin with this are the service's own (docs/decisions/0037). */
const reservedPrefix = 'kellet.';

/** Returns why a device may not send a value of this name, or undefined. */
export const nameViolation = (name: string): string | undefined =>
  name.startsWith(reservedPrefix) ? `keys that begin with ${reservedPrefix} are reserved` : nameProblem(name);

/** Returns why no point may have a value of this name, or undefined. */
export function nameProblem(name: string): string | undefined {
  if (plainName.test(name)) return undefined;
  const problem = name === '' ? 'is empty' : textProblem(name, pointLimits.keyBytes);
  return problem && `a key ${problem}`;
}

/** Names that need no further checks: the hot path. */
const plainName = /^[\w.:/-]{1,128}$/;

function textProblem(text: string, maxBytes: number): string | undefined {
  // A UTF-16 unit takes at most three bytes of UTF-8.
  if (text.length * 3 > maxBytes && Buffer.byteLength(text) > maxBytes) return `is longer than ${maxBytes} bytes`;
  if (text.includes('\0')) return 'contains NUL';
  if (!text.isWellFormed()) return 'is not well-formed Unicode';
  return undefined;
}
