// Telemetry schemas and OTA policies, which tenants and profiles both state: their checks.
import { toJson } from '@bufbuild/protobuf';
import {
  AnchoringPolicy_Mode,
  type OtaPolicy,
  type TelemetrySchema,
  TelemetrySchema_AdditionalKeys as AdditionalKeys,
  TelemetrySchema_Key_Type as KeyType,
  TelemetrySchemaSchema,
  type Window,
} from '@kellet/proto/es/kellet/v1/common_pb';
import type { AnchorMode } from '@kellet/verify';
import { invalidArgument } from '../platform/errors.ts';
import { textField } from '../platform/requests/fields.ts';

const maximumKeys = 256;
const maximumKeyBytes = 128;
const maximumStringBytes = 4096;
// The limits of the custom resource definitions, so that a manifest and a request accept the same.
const maximumUnit = 32;
const maximumEnum = 128;
const maximumEnumValue = 256;
const maximumSchemaBytes = 65_536;
const maximumSeconds = 30 * 86_400;
const days = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];

/** Checks a telemetry schema. Throws INVALID_ARGUMENT naming the field. */
export function checkTelemetrySchema(field: string, schema: TelemetrySchema): void {
  const keys = Object.entries(schema.keys);
  if (keys.length > maximumKeys) throw invalidArgument(`${field}.keys must have at most ${maximumKeys} entries`);
  if (schema.additionalKeys !== undefined) {
    const known: AdditionalKeys[] = [AdditionalKeys.allow, AdditionalKeys.reject];
    if (!known.includes(schema.additionalKeys)) throw invalidArgument(`${field}.additional_keys: unknown value`);
  }
  for (const [name, key] of keys) {
    const at = `${field}.keys[${JSON.stringify(name)}]`;
    textField(`${at} name`, name, { minimum: 1, maximum: maximumKeyBytes });
    if (Buffer.byteLength(name) > maximumKeyBytes) throw invalidArgument(`${at}: a name has at most 128 bytes`);
    textField(`${at}.unit`, key.unit, { maximum: maximumUnit });
    if (key.type === KeyType.number) {
      if (key.enum.length > 0 || key.maxLength !== undefined) {
        throw invalidArgument(`${at}: enum and max_length are for strings`);
      }
      for (const bound of [key.min, key.max]) {
        if (bound !== undefined && !Number.isFinite(bound)) throw invalidArgument(`${at}: min and max must be finite`);
      }
      if (key.min !== undefined && key.max !== undefined && key.min > key.max) {
        throw invalidArgument(`${at}: min must not be greater than max`);
      }
    } else if (key.type === KeyType.string) {
      if (key.min !== undefined || key.max !== undefined) throw invalidArgument(`${at}: min and max are for numbers`);
      if (key.unit !== '') throw invalidArgument(`${at}: unit is for numbers`);
      if (key.enum.length > maximumEnum) throw invalidArgument(`${at}.enum must have at most ${maximumEnum} entries`);
      for (const value of key.enum) textField(`${at}.enum`, value, { maximum: maximumEnumValue });
      if (new Set(key.enum).size < key.enum.length) throw invalidArgument(`${at}.enum must not repeat a value`);
      const length = key.maxLength ?? 1;
      if (length < 1 || length > maximumStringBytes) {
        throw invalidArgument(`${at}.max_length must be 1 to ${maximumStringBytes}`);
      }
    } else throw invalidArgument(`${at}.type must be number or string`);
  }
}

/** Reports whether a telemetry schema is larger than new ones may be: it is stored and copied with every profile. */
export const isSchemaTooLarge = (schema: TelemetrySchema | undefined): boolean =>
  schema !== undefined &&
  Buffer.byteLength(JSON.stringify(toJson(TelemetrySchemaSchema, schema, { useProtoFieldName: true }))) >
    maximumSchemaBytes;

/** What is wrong with such a schema. */
export const schemaTooLarge = `must be at most ${maximumSchemaBytes} bytes of JSON`;

/** Checks an OTA policy. Throws INVALID_ARGUMENT naming the field. */
export function checkOtaPolicy(field: string, policy: OtaPolicy): void {
  if (policy.deviceTimeoutSeconds > maximumSeconds) {
    throw invalidArgument(`${field}.device_timeout_seconds must be at most ${maximumSeconds}`);
  }
  if (policy.maxAttempts > 100) throw invalidArgument(`${field}.max_attempts must be at most 100`);
  if (policy.window) checkWindow(`${field}.window`, policy.window);
}

/** Checks a daily window. Throws INVALID_ARGUMENT naming the field. */
export function checkWindow(field: string, window: Window): void {
  for (const end of ['start', 'end'] as const) {
    if (!/^([01]\d|2[0-3]):[0-5]\d$/.test(window[end])) throw invalidArgument(`${field}.${end} must be HH:MM`);
  }
  if (window.start === window.end) throw invalidArgument(`${field}: start and end must differ`);
  for (const day of window.days) {
    if (!days.includes(day)) throw invalidArgument(`${field}.days must be among ${days.join(', ')}`);
  }
  if (new Set(window.days).size < window.days.length) throw invalidArgument(`${field}.days must not repeat a day`);
  if (window.timeZone !== '' && !isTimeZone(window.timeZone)) {
    throw invalidArgument(`${field}.time_zone: ${JSON.stringify(window.timeZone)} is not an IANA time zone`);
  }
}

/** Checks offline_after_seconds; 0 means unset. Throws INVALID_ARGUMENT naming the field. */
export function checkOfflineAfter(field: string, seconds: number): void {
  if (seconds > maximumSeconds) throw invalidArgument(`${field} must be at most ${maximumSeconds}`);
}

function isTimeZone(name: string): boolean {
  // Intl also accepts offsets such as +02:00, which are not IANA names.
  if (!/^[A-Za-z][A-Za-z0-9_+-]*(\/[A-Za-z0-9_+-]+)*$/.test(name) || name.length > 64) return false;
  try {
    new Intl.DateTimeFormat('en', { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

const modes: Readonly<Record<AnchorMode, AnchoringPolicy_Mode>> = {
  merkle: AnchoringPolicy_Mode.merkle,
  per_event: AnchoringPolicy_Mode.per_event,
  chain: AnchoringPolicy_Mode.chain,
};

/** Returns the name of an anchoring mode, or undefined if it is unset. */
export function anchoringModeName(mode: AnchoringPolicy_Mode | undefined): AnchorMode | undefined {
  return (Object.keys(modes) as AnchorMode[]).find((name) => modes[name] === mode);
}

/** Checks an anchoring mode of a request, which may be unset. Throws INVALID_ARGUMENT naming the field. */
export function checkAnchoringMode(field: string, mode: AnchoringPolicy_Mode | undefined): void {
  if (mode !== undefined && anchoringModeName(mode) === undefined) {
    throw invalidArgument(`${field} must be one of ${Object.keys(modes).join(', ')}`);
  }
}
