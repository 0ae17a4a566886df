// Determines the fields that an update changes: over REST what the body names, over gRPC the request's update_mask.
import type { DescField, DescMessage, DescMethod, JsonObject, JsonValue } from '@bufbuild/protobuf';
import { invalidArgument } from '../../platform/errors.ts';

const maskType = 'google.protobuf.FieldMask';

/** Reports whether requests of this type are updates, which have a field `update_mask`. */
export function hasUpdateMask(message: DescMessage): boolean {
  const field = message.fields.find((candidate) => candidate.name === 'update_mask');
  return field?.fieldKind === 'message' && field.message.typeName === maskType;
}

/**
 * Removes `update_mask` from a query string. Returns its value, undefined if it is not there, and the rest of the query. Throws
 * INVALID_ARGUMENT if it is there twice.
 */
export function takeQueryMask(query: string): { mask: string | undefined; rest: string } {
  const isMask = (part: string) => /^(update_mask|updateMask)=/.test(part);
  const parts = query.split('&');
  const masks = parts.filter(isMask);
  if (masks.length > 1) throw invalidArgument('update_mask is given twice');
  const mask = new URLSearchParams(masks[0]).values().next().value;
  return { mask, rest: parts.filter((part) => !isMask(part)).join('&') };
}

/**
 * Removes the mask from a REST body and returns it: the paths of `update_mask` in the body or the query (a comma-separated
 * string, proto or JSON names), or the paths that the body names if it has none. Returns proto names. Throws
 * INVALID_ARGUMENT for an unknown field, for one that no update changes, and for two masks.
 */
export function takeMask(
  method: Pick<DescMethod, 'input' | 'output'>,
  body: JsonObject,
  queryMask: string | undefined,
): string[] {
  const inBody = body['update_mask'] ?? body['updateMask'];
  if (inBody !== undefined && inBody !== null && queryMask !== undefined)
    throw invalidArgument('update_mask must be in the body or in the query, not in both');
  const given = inBody ?? queryMask;
  delete body['update_mask'];
  delete body['updateMask'];
  if (given === undefined || given === null) {
    return Object.entries(body).flatMap(([key, value]) => namedPaths(namedField(method, key), value));
  }
  if (typeof given !== 'string') throw invalidArgument('update_mask must be a string of comma-separated field names');
  return checkMask(
    method,
    given.split(',').filter((path) => path !== ''),
  );
}

/** Checks that each path consists of fields that updates can name, and returns proto names. */
export function checkMask(method: Pick<DescMethod, 'input' | 'output'>, paths: readonly string[]): string[] {
  return paths.map((path) => {
    const [first = '', ...rest] = path.split('.');
    const names: string[] = [];
    let field: DescField | undefined = namedField(method, first, path);
    for (const name of rest) {
      names.push(field.name);
      const within: DescMessage | undefined = mergeable(field);
      if (!within) throw invalidArgument(`update_mask: ${names.join('.')} can only be changed as a whole`);
      field = within.fields.find(hasName(name));
      if (!field) throw invalidArgument(`unknown field ${JSON.stringify(path)}`);
    }
    return [...names, field.name].join('.');
  });
}

/**
 * Returns the paths that a value of the body names: of a nested message those of its own keys, so that an update changes
 * these alone; of anything else (null, {}, a list, a map, free JSON) the field itself. Unknown keys are left to the
 * decoder.
 */
function namedPaths(field: DescField, value: JsonValue | undefined): string[] {
  const within = mergeable(field);
  if (!within || typeof value !== 'object' || value === null || Array.isArray(value)) return [field.name];
  const entries = Object.entries(value);
  if (entries.length === 0) return [field.name];
  return entries.flatMap(([key, below]) => {
    const inner = within.fields.find(hasName(key));
    return inner ? namedPaths(inner, below).map((path) => `${field.name}.${path}`) : [];
  });
}

/** Returns the message of a field whose own fields can be updated one by one. */
const mergeable = (field: DescField): DescMessage | undefined =>
  field.fieldKind === 'message' && !field.message.typeName.startsWith('google.') ? field.message : undefined;

const hasName =
  (name: string) =>
  (field: DescField): boolean =>
    field.name === name || field.jsonName === name;

/**
 * Returns the field of an update that has this name. A field of the returned resource that the request message lacks
 * exists but cannot be changed.
 */
function namedField({ input, output }: Pick<DescMethod, 'input' | 'output'>, name: string, path = name): DescField {
  const field = input.fields.find(hasName(name));
  if (field && field.name !== 'update_mask') return field;
  const fixed = output.fields.find(hasName(name));
  throw invalidArgument(fixed ? `${fixed.name} cannot be changed` : `unknown field ${JSON.stringify(path)}`);
}
