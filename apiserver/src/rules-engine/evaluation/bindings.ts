// The values of an expression's variables. Pure.
import type { CelInput } from '@bufbuild/cel';
import { create } from '@bufbuild/protobuf';
import { TimestampSchema } from '@bufbuild/protobuf/wkt';
import type { TelemetryPoint } from '@kellet/proto/es/kellet/v1/common_pb';
import { invalidArgument } from '../../platform/errors.ts';
import type { DeviceFacts } from '../../policies/inheritance.ts';
import { parseTimestamp, toNanoseconds } from '../../telemetry/points/timestamp.ts';
import { nameProblem, valueViolation } from '../../telemetry/points/validate.ts';
import type { Bindings } from '../cel/cel-expression.ts';

/** A point as rules see it. */
export interface RulePoint {
  /** Nanoseconds since 1970. */
  readonly time: bigint;
  readonly numeric: ReadonlyMap<string, number>;
  readonly string: ReadonlyMap<string, string>;
}

/** Properties of a device that expressions can use. */
export type RuleDevice = Pick<DeviceFacts, 'deviceId' | 'name' | 'type' | 'effectiveTags'>;

const noDevice: RuleDevice = { deviceId: '', name: '', type: '', effectiveTags: {} };
const nanosecondsPerSecond = 1_000_000_000n;

/** Returns the bindings of a point. `previous` is the device's preceding point, if any. */
export function bind(device: RuleDevice | undefined, point: RulePoint, previous: RulePoint | undefined): Bindings {
  const { deviceId, name, type, effectiveTags } = device ?? noDevice;
  const tags = new Map(Object.entries(effectiveTags));
  return {
    device: new Map<string, CelInput>([
      ['id', deviceId],
      ['name', name],
      ['type', type],
      ['tags', tags],
    ]),
    numeric: point.numeric,
    string: point.string,
    timestamp: toTimestamp(point.time),
    previous: new Map<string, CelInput>([
      ['numeric', previous?.numeric ?? new Map()],
      ['string', previous?.string ?? new Map()],
      ...(previous ? [['timestamp', toTimestamp(previous.time)] as const] : []),
    ]),
  };
}

const toTimestamp = (time: bigint) =>
  create(TimestampSchema, { seconds: time / nanosecondsPerSecond, nanos: Number(time % nanosecondsPerSecond) });

/** Reads the payload of a stored point. */
export function storedPoint(time: bigint, payload: StoredPayload): RulePoint {
  return {
    time,
    numeric: new Map(Object.entries(payload.numeric_values)),
    string: new Map(Object.entries(payload.string_values)),
  };
}

/** The payload of a stored point (RFC 8785 text of its values). */
export interface StoredPayload {
  readonly numeric_values: Readonly<Record<string, number>>;
  readonly string_values: Readonly<Record<string, string>>;
}

/**
 * Reads a point of a request; one without a timestamp is of `now`. Throws INVALID_ARGUMENT naming the field, also for values
 * that no stored point has: the cost of expressions is estimated for those.
 */
export function givenPoint(field: string, point: TelemetryPoint, now: Date): RulePoint {
  const time = parseTimestamp(point.timestamp || now.toISOString());
  if (!time || time.seconds < 0) {
    throw invalidArgument(`${field}.timestamp is not RFC 3339 since 1970, such as 2026-01-31T12:00:00Z`);
  }
  const violation = valueViolation(point, nameProblem);
  if (violation) throw invalidArgument(`${field}: ${violation}`);
  return {
    time: toNanoseconds(time),
    numeric: new Map(Object.entries(point.numericValues)),
    string: new Map(Object.entries(point.stringValues)),
  };
}
