// Enum values by their proto names, as rows and JSON hold them.
import type { DescEnum } from '@bufbuild/protobuf';
import { invalidArgument } from './errors.ts';

/**
 * What a list is filtered by: the proto name of an enum value; undefined when none is given, or the zero value, which stands for
 * none. Throws INVALID_ARGUMENT for a number that the contract does not know, which gRPC lets through.
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
