// What a profile's schema says about a form of points, decided once for both: most schemas are kept or broken by names and types
// alone. points/schema.ts remains the definition.
import { type TelemetrySchema, TelemetrySchema_Key_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import { keyViolation, missingName, ruleOf } from '../points/schema.ts';
import type { PointForm } from './point-form.ts';

/** Whether every point of a form conforms to a schema, none does, or its values decide. */
export type SchemaFit = 'all' | 'none' | 'values';

const fits = new WeakMap<TelemetrySchema, WeakMap<PointForm, SchemaFit>>();

/** Returns how a schema and a form fit. */
export function schemaFit(schema: TelemetrySchema, form: PointForm): SchemaFit {
  let ofSchema = fits.get(schema);
  if (!ofSchema) fits.set(schema, (ofSchema = new WeakMap()));
  let fit = ofSchema.get(form);
  if (fit === undefined) ofSchema.set(form, (fit = fitOf(schema, form)));
  return fit;
}

function fitOf(schema: TelemetrySchema, { numericNames, stringNames }: PointForm): SchemaFit {
  const { number, string } = TelemetrySchema_Key_Type;
  const isViolated =
    numericNames.some((name) => keyViolation(schema, name, number) !== undefined) ||
    stringNames.some((name) => keyViolation(schema, name, string) !== undefined) ||
    missingName(schema, (name) => numericNames.includes(name) || stringNames.includes(name)) !== undefined;
  if (isViolated) return 'none';
  const isBounded = (name: string): boolean => {
    const rule = ruleOf(schema, name);
    return rule?.min !== undefined || rule?.max !== undefined;
  };
  const isRestricted = (name: string): boolean => {
    const rule = ruleOf(schema, name);
    return rule !== undefined && (rule.maxLength !== undefined || rule.enum.length > 0);
  };
  return numericNames.some(isBounded) || stringNames.some(isRestricted) ? 'values' : 'all';
}
