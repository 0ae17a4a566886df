// Checks values against JSON Schemas in tests.
import { Ajv2020, type AnySchema } from 'ajv/dist/2020.js';

type Json = Record<string, unknown>;

const formats: Readonly<Record<string, RegExp>> = {
  uuid: /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/,
  'date-time': /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$/,
};

/** Returns the schema with every object limited to the properties that it names. */
function closed(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(closed);
  if (typeof schema !== 'object' || schema === null) return schema;
  const entries = Object.entries(schema).map(([key, value]) => [key, closed(value)] as const);
  const isOpen = 'properties' in schema && !('additionalProperties' in schema);
  return { ...Object.fromEntries(entries), ...(isOpen ? { additionalProperties: false } : {}) };
}

/**
 * Returns a function that lists how a value differs from a schema, which may refer to the schemas of an OpenAPI document.
 * A property that the schema does not name is a difference, unless it says that there may be any.
 */
export function schemaCheck(schema: Json, document: Json): (value: unknown) => string[] {
  const ajv = new Ajv2020({ allErrors: true, strict: false });
  for (const [name, form] of Object.entries(formats)) ajv.addFormat(name, form);
  // Kinds of numbers, which JSON does not tell apart.
  for (const name of ['int32', 'int64', 'double']) ajv.addFormat(name, true);
  const { components } = document;
  const validate = ajv.compile(closed({ ...schema, components }) as AnySchema);
  return (value) =>
    validate(value)
      ? []
      : (validate.errors ?? []).map(
          (error) => `${error.instancePath} ${error.message} ${JSON.stringify(error.params)}`,
        );
}
