// Enum values by their proto names, as stored in rows and JSON.
import type { DescEnum } from '@bufbuild/protobuf';
import { invalidArgument } from '../errors.ts';

/**
 * Returns the proto name of the enum value that a list is filtered by, or undefined for an absent or zero value. Throws
 * INVALID_ARGUMENT for a number outside the contract, which gRPC lets through.
 */
export function enumFilter<Name extends string>(
  field: string,
  type: DescEnum,
  value: number | undefined,
): Name | undefined {
  if (value === undefined || value === 0) return undefined;
  const known = type.value[value];
  if (known) return known.name as Name;
  const names = type.values.filter(({ number }) => number !== 0).map(({ name }) => name);
  throw invalidArgument(`${field} must be one of ${names.join(', ')}`);
}
