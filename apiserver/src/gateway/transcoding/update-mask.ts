// Determines the fields that an update changes: over REST the keys of the body, over gRPC the request's update_mask.
import type { DescMessage, JsonObject } from '@bufbuild/protobuf';
import { invalidArgument } from '../../platform/errors.ts';

const maskType = 'google.protobuf.FieldMask';

/** Reports whether requests of this type are updates, which have a field `update_mask`. */
export function hasUpdateMask(message: DescMessage): boolean {
  const field = message.fields.find((candidate) => candidate.name === 'update_mask');
  return field?.fieldKind === 'message' && field.message.typeName === maskType;
}

/**
 * Removes the mask from a REST body and returns it: the paths of its `update_mask` (a comma-separated string, proto or
 * JSON names), or its keys if it has none. Returns proto names. Throws INVALID_ARGUMENT for an unknown field.
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

/** Checks that each path starts with a field that updates can name, and returns proto names. */
export function checkMask(message: DescMessage, paths: readonly string[]): string[] {
  return paths.map((path) => {
    const [first = '', ...rest] = path.split('.');
    const field = message.fields.find((candidate) => candidate.name === first || candidate.jsonName === first);
    if (!field || field.name === 'update_mask') throw invalidArgument(`unknown field ${JSON.stringify(path)}`);
    return [field.name, ...rest].join('.');
  });
}
