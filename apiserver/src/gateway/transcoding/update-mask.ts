// Determines the fields that an update changes: over REST the keys of the body, over gRPC the request's update_mask.
import type { DescMessage, DescMethod, JsonObject } from '@bufbuild/protobuf';
import { invalidArgument } from '../../platform/errors.ts';

const maskType = 'google.protobuf.FieldMask';

/** Reports whether requests of this type are updates, which have a field `update_mask`. */
export function hasUpdateMask(message: DescMessage): boolean {
  const field = message.fields.find((candidate) => candidate.name === 'update_mask');
  return field?.fieldKind === 'message' && field.message.typeName === maskType;
}

/**
 * Removes the mask from a REST body and returns it: the paths of its `update_mask` (a comma-separated string, proto or
 * JSON names), or its keys if it has none. Returns proto names. Throws INVALID_ARGUMENT for an unknown field and for one
 * that no update changes.
 */
export function takeMask(method: Pick<DescMethod, 'input' | 'output'>, body: JsonObject): string[] {
  const given = body['update_mask'] ?? body['updateMask'];
  delete body['update_mask'];
  delete body['updateMask'];
  if (given === undefined || given === null) return checkMask(method, Object.keys(body));
  if (typeof given !== 'string') throw invalidArgument('update_mask must be a string of comma-separated field names');
  return checkMask(
    method,
    given.split(',').filter((path) => path !== ''),
  );
}

/**
 * Checks that each path starts with a field that updates can name, and returns proto names. A field of the returned
 * resource that the request message lacks exists but cannot be changed.
 */
export function checkMask({ input, output }: Pick<DescMethod, 'input' | 'output'>, paths: readonly string[]): string[] {
  return paths.map((path) => {
    const [first = '', ...rest] = path.split('.');
    const named = (message: DescMessage) =>
      message.fields.find((candidate) => candidate.name === first || candidate.jsonName === first);
    const field = named(input);
    if (field && field.name !== 'update_mask') return [field.name, ...rest].join('.');
    if (named(output)) throw invalidArgument(`${named(output)!.name} cannot be changed`);
    throw invalidArgument(`unknown field ${JSON.stringify(path)}`);
  });
}
