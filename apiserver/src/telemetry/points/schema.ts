// Checks values against a profile's telemetry schema.
import {
  type TelemetrySchema,
  TelemetrySchema_AdditionalKeys,
  type TelemetrySchema_Key,
  TelemetrySchema_Key_Type,
} from '@kellet/proto/es/kellet/v1/common_pb';
import { shorten } from '../../platform/shorten.ts';
import type { PointValues } from './payload.ts';

/** Values that an error lists, and characters of each. */
const mostListed = 10;
const longestListed = 40;

/** Returns why the values violate the schema, or undefined if they conform. */
export function schemaViolation(schema: TelemetrySchema, values: PointValues): string | undefined {
  for (const [name, value] of Object.entries(values.numericValues)) {
    const violation = keyViolation(schema, name, TelemetrySchema_Key_Type.number);
    if (violation) return violation;
    const rule = ruleOf(schema, name);
    if (rule?.min !== undefined && value < rule.min) return `${name} is below ${rule.min}`;
    if (rule?.max !== undefined && value > rule.max) return `${name} is above ${rule.max}`;
  }
  for (const [name, value] of Object.entries(values.stringValues)) {
    const violation = keyViolation(schema, name, TelemetrySchema_Key_Type.string) ?? textViolation(schema, name, value);
    if (violation) return violation;
  }
  const isGiven = (name: string) =>
    Object.hasOwn(values.numericValues, name) || Object.hasOwn(values.stringValues, name);
  const missing = missingName(schema, isGiven);
  return missing === undefined ? undefined : `${missing} is required`;
}

/** Returns a required name that is not given, or undefined. */
export function missingName(schema: TelemetrySchema, isGiven: (name: string) => boolean): string | undefined {
  for (const [name, rule] of Object.entries(schema.keys)) if (rule.required && !isGiven(name)) return name;
  return undefined;
}

/** Returns what a schema says about a name, or undefined. */
export function ruleOf(schema: TelemetrySchema, name: string): TelemetrySchema_Key | undefined {
  return Object.hasOwn(schema.keys, name) ? schema.keys[name] : undefined;
}

/** Returns why a schema forbids values of a type under a name, or undefined. */
export function keyViolation(
  schema: TelemetrySchema,
  name: string,
  given: TelemetrySchema_Key_Type,
): string | undefined {
  const rule = ruleOf(schema, name);
  if (!rule) {
    const reject = schema.additionalKeys === TelemetrySchema_AdditionalKeys.reject;
    return reject ? `${name} is not a key of the schema` : undefined;
  }
  const wanted = rule.type ?? TelemetrySchema_Key_Type.type_unspecified;
  if (wanted === TelemetrySchema_Key_Type.type_unspecified || wanted === given) return undefined;
  return `${name} must be a ${wanted === TelemetrySchema_Key_Type.number ? 'number' : 'string'}`;
}

/** Returns the first of some values, since a response has a hundred errors and is kept for the idempotency key. */
function listed(values: readonly string[]): string {
  const first = values.slice(0, mostListed).map((value) => shorten(value, longestListed));
  return first.join(', ') + (values.length > mostListed ? ' …' : '');
}

function textViolation(schema: TelemetrySchema, name: string, value: string): string | undefined {
  const rule = ruleOf(schema, name);
  if (!rule) return undefined;
  if (rule.maxLength !== undefined && Buffer.byteLength(value) > rule.maxLength) {
    return `${name} is longer than ${rule.maxLength} bytes`;
  }
  if (rule.enum.length > 0 && !rule.enum.includes(value)) return `${name} must be one of ${listed(rule.enum)}`;
  return undefined;
}
