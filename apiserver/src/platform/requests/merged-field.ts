// Applies the part of an update that concerns one nested message.
import { clone, create, type DescMessage, type MessageShape } from '@bufbuild/protobuf';
import type { UpdateMask } from './fields.ts';

/**
 * Returns a nested message after an update: `update` if the mask names the field itself, otherwise `current` with the
 * fields below it that the mask names taken from `update`. Undefined if it is unset afterwards.
 */
export function mergedField<Desc extends DescMessage>(
  schema: Desc,
  field: string,
  mask: UpdateMask,
  { current, update }: { current: MessageShape<Desc> | undefined; update: MessageShape<Desc> | undefined },
): MessageShape<Desc> | undefined {
  if (mask.paths.includes(field)) return update;
  const below = mask.paths.flatMap((path) => (path.startsWith(`${field}.`) ? [path.slice(field.length + 1)] : []));
  if (below.length === 0) return current;
  const merged = current ? clone(schema, current) : create(schema);
  const values = merged as unknown as Record<string, unknown>;
  const given = (update ?? create(schema)) as unknown as Record<string, unknown>;
  for (const { name, localName, fieldKind, message } of schema.fields) {
    if (below.includes(name)) values[localName] = given[localName];
    else if (fieldKind === 'message' && below.some((path) => path.startsWith(`${name}.`))) {
      values[localName] = mergedField(
        message,
        name,
        { paths: below },
        {
          current: values[localName] as MessageShape<DescMessage> | undefined,
          update: given[localName] as MessageShape<DescMessage> | undefined,
        },
      );
    }
  }
  return merged;
}
