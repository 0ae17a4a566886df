// The types of CEL as the checker sees them, and which fit together. Pure.
import type { CelType } from '@bufbuild/cel';

/** Types without parts; `dyn` is a type known only at evaluation. */
export type Scalar =
  'bool' | 'int' | 'uint' | 'double' | 'string' | 'bytes' | 'null_type' | 'timestamp' | 'duration' | 'type' | 'dyn';

/** A type. `record` has a fixed set of fields, such as `device`. */
export type Type =
  | Scalar
  | { readonly kind: 'list'; readonly element: Type }
  | { readonly kind: 'map'; readonly key: Type; readonly value: Type }
  | { readonly kind: 'record'; readonly name: string; readonly fields: Readonly<Record<string, Type>> };

export const listOf = (element: Type): Type => ({ kind: 'list', element });
export const mapOf = (value: Type, key: Type = 'string'): Type => ({ kind: 'map', key, value });

/** Converts a type of the library's function declarations. */
export function fromLibrary(type: CelType): Type {
  if (type.kind === 'scalar') return type.name;
  if (type.kind === 'list') return listOf(fromLibrary(type.element));
  if (type.kind === 'map') return mapOf(fromLibrary(type.value), fromLibrary(type.key));
  if (type.name === 'google.protobuf.Timestamp') return 'timestamp';
  return type.name === 'google.protobuf.Duration' ? 'duration' : 'dyn';
}

/** Reports whether a value of the given type may be passed where `wanted` is declared. */
export function fits(given: Type, wanted: Type): boolean {
  if (given === 'dyn' || wanted === 'dyn') return true;
  if (typeof given === 'string' || typeof wanted === 'string') return given === wanted;
  if (given.kind === 'list' && wanted.kind === 'list') return fits(given.element, wanted.element);
  if (given.kind === 'map' && wanted.kind === 'map')
    return fits(given.key, wanted.key) && fits(given.value, wanted.value);
  return given.kind === 'record' && wanted.kind === 'record' && given.name === wanted.name;
}

const numbers: ReadonlySet<Type> = new Set(['int', 'uint', 'double']);

/** Reports whether values of the types can be equal: numbers of different types can. */
export function comparable(left: Type, right: Type): boolean {
  if (numbers.has(left) && numbers.has(right)) return true;
  if (left === 'null_type' || right === 'null_type') return true;
  if (typeof left !== 'string' && typeof right !== 'string' && left.kind === 'list' && right.kind === 'list') {
    return comparable(left.element, right.element);
  }
  return fits(left, right);
}

/** Returns the type of a value that has one of two types. */
export const join = (left: Type, right: Type): Type =>
  left !== 'dyn' && right !== 'dyn' && fits(left, right) ? left : 'dyn';

/** Returns the name of a type for messages. */
export function nameOf(type: Type): string {
  if (typeof type === 'string') return type;
  if (type.kind === 'list') return `list(${nameOf(type.element)})`;
  return type.kind === 'map' ? `map(${nameOf(type.key)}, ${nameOf(type.value)})` : type.name;
}
