// What a profile's fields may hold (API.md, Profile). Pure: the answer is the first problem, with the field it is in, so that
// REST callers and the status of a custom resource can say the same in their own spelling.
import type { OtaPolicy, TelemetrySchema, TelemetrySchema_Key, Window } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import {
  AnchoringPolicy_Mode,
  TelemetrySchema_AdditionalKeys,
  TelemetrySchema_Key_Type,
} from '@kellet/proto/es/kellet/v1/common_pb.ts';
import type { Profile } from '@kellet/proto/es/kellet/v1/profile_pb.ts';

/** A field by its proto path, and what is wrong with it: `ota_policy.window.start must be HH:MM`. */
export interface FieldProblem {
  readonly field: string;
  readonly problem: string;
}

/** The part of a profile that can be wrong. */
export type ProfileFields = Pick<
  Profile,
  'type' | 'defaultTags' | 'anchoringPolicy' | 'telemetrySchema' | 'otaPolicy' | 'offlineAfterSeconds'
>;

const monthInSeconds = 2_592_000;
const days = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];

/** The first problem of a profile; undefined when there is none. */
export const profileProblem = (profile: ProfileFields): FieldProblem | undefined =>
  first([
    () => textProblem('type', profile.type, 128),
    () => tagsProblem('default_tags', profile.defaultTags),
    () => anchoringProblem('anchoring_policy.mode', profile.anchoringPolicy?.mode),
    () => profile.telemetrySchema && telemetrySchemaProblem('telemetry_schema', profile.telemetrySchema),
    () => profile.otaPolicy && otaPolicyProblem('ota_policy', profile.otaPolicy),
    () => rangeProblem('offline_after_seconds', profile.offlineAfterSeconds, monthInSeconds),
  ]);

/** Tags: at most 64, keys of 1 to 128 characters, values of at most 256. */
export const tagsProblem = (field: string, tags: Readonly<Record<string, string>>): FieldProblem | undefined =>
  Object.keys(tags).length > 64
    ? { field, problem: 'must have at most 64 entries' }
    : first(
        Object.entries(tags).flatMap(([key, value]) => [
          () => keyProblem(field, key),
          () => textProblem(`${field}[${key}]`, value, 256),
        ]),
      );

const anchoringProblem = (field: string, mode: AnchoringPolicy_Mode | undefined): FieldProblem | undefined =>
  mode === undefined || isNamed(AnchoringPolicy_Mode, mode)
    ? undefined
    : { field, problem: 'must be merkle, per_event or chain' };

/** A telemetry schema: at most 256 keys, each with a type and the limits that fit it. */
export function telemetrySchemaProblem(field: string, schema: TelemetrySchema): FieldProblem | undefined {
  if (schema.additionalKeys !== undefined && !isNamed(TelemetrySchema_AdditionalKeys, schema.additionalKeys)) {
    return { field: `${field}.additional_keys`, problem: 'must be allow or reject' };
  }
  const keys = Object.entries(schema.keys);
  if (keys.length > 256) return { field: `${field}.keys`, problem: 'must have at most 256 entries' };
  return first(
    keys.flatMap(([name, key]) => [
      () => keyProblem(`${field}.keys`, name),
      () => schemaKeyProblem(`${field}.keys[${name}]`, key),
    ]),
  );
}

function schemaKeyProblem(field: string, key: TelemetrySchema_Key): FieldProblem | undefined {
  const { type, min, max } = key;
  if (type === undefined || !isNamed(TelemetrySchema_Key_Type, type)) {
    return { field: `${field}.type`, problem: 'must be number or string' };
  }
  if (type === TelemetrySchema_Key_Type.string) {
    const numeric = min !== undefined ? 'min' : max !== undefined ? 'max' : key.unit !== '' ? 'unit' : undefined;
    if (numeric) return { field: `${field}.${numeric}`, problem: 'is only for a number' };
    if (key.enum.length > 128) return { field: `${field}.enum`, problem: 'must have at most 128 entries' };
    if (new Set(key.enum).size < key.enum.length) return { field: `${field}.enum`, problem: 'must not repeat a value' };
    return first([
      ...key.enum.map((value, index) => () => textProblem(`${field}.enum[${index}]`, value, 256)),
      () =>
        key.maxLength !== undefined && (key.maxLength < 1 || key.maxLength > 4096)
          ? { field: `${field}.max_length`, problem: 'must be 1 to 4096' }
          : undefined,
    ]);
  }
  if (key.enum.length > 0) return { field: `${field}.enum`, problem: 'is only for a string' };
  if (key.maxLength !== undefined) return { field: `${field}.max_length`, problem: 'is only for a string' };
  if (min !== undefined && !Number.isFinite(min)) return { field: `${field}.min`, problem: 'must be a finite number' };
  if (max !== undefined && !Number.isFinite(max)) return { field: `${field}.max`, problem: 'must be a finite number' };
  if (min !== undefined && max !== undefined && min > max) {
    return { field: `${field}.min`, problem: 'must not be above max' };
  }
  return textProblem(`${field}.unit`, key.unit, 32);
}

/** An OTA policy: timeouts of at most 30 days, at most 100 attempts, a window that can open. */
export const otaPolicyProblem = (field: string, policy: OtaPolicy): FieldProblem | undefined =>
  first([
    () => rangeProblem(`${field}.device_timeout_seconds`, policy.deviceTimeoutSeconds, monthInSeconds),
    () => rangeProblem(`${field}.max_attempts`, policy.maxAttempts, 100),
    () => policy.window && windowProblem(`${field}.window`, policy.window),
  ]);

/** A window (DECISIONS 21): times of day as HH:MM that differ, days mon to sun, an IANA time zone. */
export function windowProblem(field: string, window: Window): FieldProblem | undefined {
  for (const edge of ['start', 'end'] as const) {
    if (!/^([01]\d|2[0-3]):[0-5]\d$/.test(window[edge])) return { field: `${field}.${edge}`, problem: 'must be HH:MM' };
  }
  if (window.start === window.end) return { field: `${field}.end`, problem: 'must differ from start' };
  const wrong = window.days.find((day) => !days.includes(day));
  if (wrong !== undefined) return { field: `${field}.days`, problem: `must be of ${days.join(', ')}` };
  if (new Set(window.days).size < window.days.length)
    return { field: `${field}.days`, problem: 'must not repeat a day' };
  if (window.timeZone !== '' && !isTimeZone(window.timeZone)) {
    return { field: `${field}.time_zone`, problem: 'must be an IANA time zone such as Europe/Berlin' };
  }
  return undefined;
}

function isTimeZone(name: string): boolean {
  // Intl also takes offsets such as +02:00, which know no summer time and are no IANA names.
  if (!/^[A-Za-z][A-Za-z0-9_+-]*(\/[A-Za-z0-9_+-]+)*$/.test(name) || name.length > 64) return false;
  try {
    new Intl.DateTimeFormat('en', { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

/** Whether a number is one of the enum's values other than `unspecified`: proto3 lets any number through. */
const isNamed = (values: Record<string, string | number>, value: number): boolean =>
  value !== 0 && Object.values(values).includes(value);

const keyProblem = (field: string, key: string): FieldProblem | undefined =>
  key.length < 1 || key.length > 128 || key.includes('\0')
    ? { field, problem: 'must have keys of 1 to 128 characters without NUL' }
    : undefined;

function textProblem(field: string, text: string, maximum: number): FieldProblem | undefined {
  if (text.includes('\0')) return { field, problem: 'must not contain NUL' };
  return text.length > maximum ? { field, problem: `must have at most ${maximum} characters` } : undefined;
}

const rangeProblem = (field: string, value: number, maximum: number): FieldProblem | undefined =>
  value > maximum ? { field, problem: `must be at most ${maximum}` } : undefined;

function first(checks: readonly (() => FieldProblem | undefined)[]): FieldProblem | undefined {
  for (const check of checks) {
    const problem = check();
    if (problem) return problem;
  }
  return undefined;
}
