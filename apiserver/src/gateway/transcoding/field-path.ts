// Formats positions in a request for error messages: `points[3].numeric_values["a"]`.
import type { DescField, DescMessage } from '@bufbuild/protobuf';

/** Keys and indices from the root of a JSON value to a position in it. */
export type JsonPath = readonly (string | number)[];

/** Returns the field for a JSON key, by its proto name or its JSON name. */
export const fieldOf = (schema: DescMessage, key: string): DescField | undefined =>
  schema.fields.find((field) => field.name === key || field.jsonName === key);

/** Reports whether the type has its own JSON form in proto3, so that the keys below it are not fields. */
export const isWellKnown = (schema: DescMessage): boolean => schema.typeName.startsWith('google.protobuf.');

/** Formats a path: fields after dots, map keys and keys of free-form JSON in brackets. Empty for the root. */
export function showPath(schema: DescMessage, path: JsonPath): string {
  let text = '';
  let message: DescMessage | undefined = schema;
  let field: DescField | undefined;
  for (const part of path) {
    if (typeof part === 'number') {
      text += `[${part}]`;
    } else if (message && !isWellKnown(message) && field?.fieldKind !== 'map') {
      text += text === '' ? part : `.${part}`;
      field = fieldOf(message, part);
      message = field?.message;
      continue;
    } else {
      text += `[${JSON.stringify(part)}]`;
    }
    // An item of a list or map: from here on its own fields apply.
    if (field?.fieldKind === 'map' || field?.fieldKind === 'list') field = undefined;
  }
  return text;
}

/** Returns `<path>: <reason>`, or `the body: <reason>` for the root. */
export function showProblem(schema: DescMessage, path: JsonPath, reason: string): string {
  const place = showPath(schema, path);
  return `${place === '' ? 'the body' : place}: ${reason}`;
}
