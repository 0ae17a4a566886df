// Where something stands in a request, as error messages say it: `points[3].numeric_values["a"]`.
import type { DescField, DescMessage } from '@bufbuild/protobuf';

/** Keys and indices from the top of a JSON value to a place in it. */
export type JsonPath = readonly (string | number)[];

/** The field of a message that a JSON key means: by its proto name or its JSON name. */
export const fieldOf = (schema: DescMessage, key: string): DescField | undefined =>
  schema.fields.find((field) => field.name === key || field.jsonName === key);

/** Whether the type has a JSON form of its own in proto3, so that the keys below it are no fields. */
export const isWellKnown = (schema: DescMessage): boolean => schema.typeName.startsWith('google.protobuf.');

/** Shows a path: fields after dots, keys of maps and of free JSON in brackets. Empty for the top. */
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
    // An item of a list or a map: from here on its own fields count.
    if (field?.fieldKind === 'map' || field?.fieldKind === 'list') field = undefined;
  }
  return text;
}

/** `<path>: <reason>`, or what is wrong with the body as a whole. */
export function showProblem(schema: DescMessage, path: JsonPath, reason: string): string {
  const place = showPath(schema, path);
  return `${place === '' ? 'the body' : place}: ${reason}`;
}
