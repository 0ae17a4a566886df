// Enum values by their proto names, as rows and JSON hold them.
import type { DescEnum } from '@bufbuild/protobuf';

/**
 * The proto name of an enum value; undefined stays undefined (the filter was not given). A number that the contract does not
 * know gives its digits, which match nothing.
 */
export function enumName(type: DescEnum, value: number | undefined): string | undefined {
  return value === undefined ? undefined : (type.value[value]?.name ?? String(value));
}
