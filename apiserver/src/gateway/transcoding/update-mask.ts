// What an update changes: on REST the keys of the body, on gRPC the request's update_mask (DECISIONS 26).
import type { DescMessage, JsonObject } from '@bufbuild/protobuf';
import { invalidArgument } from '../../platform/errors.ts';

const maskType = 'google.protobuf.FieldMask';

/** Whether requests of this type are updates: they have a field `update_mask`. */
export function hasUpdateMask(message: DescMessage): boolean {
  const field = message.fields.find((candidate) => candidate.name === 'update_mask');
  return field?.fieldKind === 'message' && field.message.typeName === maskType;
}

/**
 * Takes the mask out of a REST body: the paths of its `update_mask` (a string, comma-separated, proto or JSON names), or its
 * keys when it has none. Returns proto names. Throws INVALID_ARGUMENT for a path that is no field.
 */
export function takeMask(message: DescMessage, body: JsonObject): string[] {
  const given = body['update_mask'] ?? body['updateMask'];
  delete body['update_mask'];
  delete body['updateMask'];
  if (given === undefined || given === null) return checkMask(message, Object.keys(body));
  if (typeof given !== 'string') throw invalidArgument('update_mask must be a string of comma-separated field names');
  return checkMask(
    message,
    given.split(',').filter((path) => path !== ''),
  );
}

/** Checks that each path begins with a field of the request that an update can name, and returns proto names. */
export function checkMask(message: DescMessage, paths: readonly string[]): string[] {
  return paths.map((path) => {
    const [first = '', ...rest] = path.split('.');
    const field = message.fields.find((candidate) => candidate.name === first || candidate.jsonName === first);
    if (!field || field.name === 'update_mask') throw invalidArgument(`unknown field ${JSON.stringify(path)}`);
    return [field.name, ...rest].join('.');
  });
}
