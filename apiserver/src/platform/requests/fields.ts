// Validates request fields that every service needs: text, ids, update masks. Each check throws INVALID_ARGUMENT naming
// the field.
import type { JsonValue } from '@bufbuild/protobuf';
import { invalidArgument, notFound } from '../errors.ts';
import { isId } from '../ids.ts';

/**
 * Checks a text field and returns it: no NUL and no half of a surrogate pair (PostgreSQL text cannot hold them), and its
 * length in characters.
 */
export function textField(name: string, value: string, limits: { minimum?: number; maximum: number }): string {
  if (value.includes('\0')) throw invalidArgument(`${name} must not contain NUL`);
  if (!value.isWellFormed()) throw invalidArgument(`${name} is not valid Unicode`);
  const { minimum = 0, maximum } = limits;
  if (isLonger(value, maximum)) throw invalidArgument(`${name} must have at most ${maximum} characters`);
  if (value.length < minimum || (minimum > 1 && [...value].length < minimum)) {
    throw invalidArgument(value === '' ? `${name} is required` : `${name} must have at least ${minimum} characters`);
  }
  return value;
}

/** Reports whether a text has more characters than this. A surrogate pair counts as one, as in Kubernetes and PostgreSQL. */
export function isLonger(value: string, maximum: number): boolean {
  return value.length > maximum && (value.length > 2 * maximum || [...value].length > maximum);
}

/** Checks a map of texts (tags): at most `maximumEntries`, keys of 1–128 characters, values of at most 1024. */
export function textMapField(name: string, map: Readonly<Record<string, string>>, maximumEntries = 64): void {
  const entries = Object.entries(map);
  if (entries.length > maximumEntries) throw invalidArgument(`${name} must have at most ${maximumEntries} entries`);
  for (const [key, value] of entries) {
    textField(`${name} key`, key, { minimum: 1, maximum: 128 });
    textField(`${name}[${key}]`, value, { maximum: 1024 });
  }
}

/**
 * Checks free-form JSON: at most `maximumBytes` as UTF-8, no NUL, and no number that JSON
 * cannot express, which gRPC lets through. Numbers count as PostgreSQL writes those of jsonb, without exponents: 1e300 has
 * 301 digits there, and would make what is read fifty times as large as what was sent.
 */
export function freeJsonField(name: string, value: JsonValue, maximumBytes: number): void {
  let digits = 0;
  const text = JSON.stringify(value, (key, item: unknown) => {
    if (key.includes('\0') || (typeof item === 'string' && item.includes('\0'))) {
      throw invalidArgument(`${name} must not contain NUL`);
    }
    if (!key.isWellFormed() || (typeof item === 'string' && !item.isWellFormed())) {
      throw invalidArgument(`${name} is not valid Unicode`);
    }
    if (typeof item === 'number') {
      if (!Number.isFinite(item)) throw invalidArgument(`${name}: numbers must be finite`);
      digits += exponentOf(item);
    }
    return item;
  });
  if (Buffer.byteLength(text) + digits <= maximumBytes) return;
  const counted = digits > 0 ? ', with numbers without exponents' : '';
  throw invalidArgument(`${name} must have at most ${maximumBytes} bytes${counted}`);
}

/** Returns the exponent with which a number is written, without its sign; 0 without one, as from 1e-6 to 1e21. */
function exponentOf(value: number): number {
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-6 && size < 1e21)) return 0;
  return Number(/\d+$/.exec(String(size))![0]);
}

/** Returns the normalised id. Throws NOT_FOUND for an invalid id, which cannot name anything, as for an unknown one. */
export function idField(what: string, value: string): string {
  if (!isId(value)) throw notFound(what);
  return value.toLowerCase();
}

/**
 * Returns the top-level fields that an update names. The gateway derives the mask of a REST call from the body; a gRPC
 * caller must send it. Throws INVALID_ARGUMENT if it is missing or names a field that cannot be updated. An empty mask
 * changes nothing. A path within a nested message is applied by mergedField (merged-field.ts).
 */
export function updatedFields<Field extends string>(
  mask: UpdateMask | undefined,
  updatable: readonly Field[],
): ReadonlySet<Field> {
  if (mask === undefined) throw invalidArgument('update_mask is required');
  const fields = mask.paths.map((path) => path.split('.', 1)[0]!);
  for (const field of fields) {
    if (!(updatable as readonly string[]).includes(field)) {
      throw invalidArgument(`update_mask: ${JSON.stringify(field)} cannot be updated`);
    }
  }
  return new Set(fields as Field[]);
}

/** The fields that an update changes, as paths of proto names. */
export interface UpdateMask {
  readonly paths: readonly string[];
}
