// Messages as JSON Schema 2020-12, in Kellet's proto3 JSON form: proto field names, enums by name, scalars always
// present.
import { type DescEnum, type DescField, type DescMessage, type JsonObject, ScalarType } from '@bufbuild/protobuf';
import { commonFields } from './common-fields.ts';
import type { Contract } from './contract.ts';
import { fieldFacts, isRequired, shortName } from './field-facts.ts';

/**
 * Whether a schema describes a request (fields that may be sent) or a response (fields always present are required).
 */
export type Side = 'request' | 'response';

const scalarSchemas: Partial<Record<ScalarType, JsonObject>> = {
  [ScalarType.STRING]: { type: 'string' },
  [ScalarType.BOOL]: { type: 'boolean' },
  [ScalarType.BYTES]: { type: 'string', format: 'byte' },
  [ScalarType.DOUBLE]: { type: 'number', format: 'double' },
  [ScalarType.FLOAT]: { type: 'number', format: 'float' },
  [ScalarType.INT32]: { type: 'integer', format: 'int32', minimum: -(2 ** 31), maximum: 2 ** 31 - 1 },
  [ScalarType.UINT32]: { type: 'integer', format: 'int64', minimum: 0, maximum: 2 ** 32 - 1 },
};

/** Well-known types with their own JSON form (protobuf.dev, ProtoJSON). */
const wellKnown: Record<string, JsonObject> = {
  'google.protobuf.Timestamp': { type: 'string', format: 'date-time' },
  'google.protobuf.FieldMask': { type: 'string' },
  'google.protobuf.Struct': { type: 'object', additionalProperties: true },
  'google.protobuf.Value': {},
  'google.api.HttpBody': {},
};

/** Collects the schemas that operations refer to. */
export class Schemas {
  private readonly contract: Contract;
  private readonly sides = new Map<string, Set<Side>>();
  private readonly components = new Map<string, JsonObject>();

  /** `roots` are the messages of all operations. A message used on both sides becomes two schemas. */
  constructor(contract: Contract, roots: Iterable<{ message: DescMessage; side: Side }>) {
    this.contract = contract;
    for (const { message, side } of roots) this.mark(message, side);
  }

  /** All schemas referred to so far, by name. */
  get all(): JsonObject {
    return Object.fromEntries([...this.components].sort(([a], [b]) => (a < b ? -1 : 1)));
  }

  /** Returns a reference to a message. `without` omits fields bound by the path. */
  message(message: DescMessage, side: Side, without: ReadonlySet<string> = new Set()): JsonObject {
    const known = wellKnown[message.typeName];
    if (known) return known;
    const isBoth = this.sides.get(message.typeName)?.size === 2;
    const name = shortName(message.typeName) + (isBoth && side === 'request' ? 'Input' : '');
    if (!this.components.has(name)) {
      this.components.set(name, {});
      this.components.set(name, this.object(message, side, without));
    }
    return { $ref: `#/components/schemas/${name}` };
  }

  /** Returns the schema of a field, with its comment and constraints. */
  field(field: DescField, side: Side): JsonObject {
    const text = this.contract.comment(field) || commonFields[field.name];
    return { ...this.typeOf(field, side), ...(text ? { description: text } : {}), ...schemaFacts(field, side) };
  }

  private object(message: DescMessage, side: Side, without: ReadonlySet<string>): JsonObject {
    const fields = message.fields.filter(({ name }) => !without.has(name));
    const required = fields.filter((field) => (side === 'request' ? isRequired(field) : isAlwaysShown(field)));
    const text = this.contract.comment(message);
    return {
      type: 'object',
      ...(text ? { description: text } : {}),
      properties: Object.fromEntries(fields.map((field) => [field.name, this.field(field, side)])),
      ...(required.length > 0 ? { required: required.map(({ name }) => name) } : {}),
      // Requests reject unknown fields; responses may gain fields.
      ...(side === 'request' ? { additionalProperties: false } : {}),
    };
  }

  private typeOf(field: DescField, side: Side): JsonObject {
    switch (field.fieldKind) {
      case 'scalar':
        return scalarSchema(field);
      case 'enum':
        return this.enumeration(field.enum);
      case 'message':
        return this.message(field.message, side);
      case 'list':
        return {
          type: 'array',
          items: field.message
            ? this.message(field.message, side)
            : field.enum
              ? this.enumeration(field.enum)
              : scalarSchema(field),
        };
      case 'map':
        return {
          type: 'object',
          additionalProperties: field.message
            ? this.message(field.message, side)
            : field.enum
              ? this.enumeration(field.enum)
              : scalarSchema(field),
        };
    }
  }

  private enumeration(of: DescEnum): JsonObject {
    const name = shortName(of.typeName);
    // The zero value means "unset" and never appears in JSON.
    const values = of.values.filter(({ number }) => number !== 0);
    const meanings = values.map((value) => [value.name, this.contract.comment(value)]).filter(([, text]) => text);
    const text = [this.contract.comment(of), ...meanings.map(([value, meaning]) => `- \`${value}\`: ${meaning}`)];
    const description = text.filter(Boolean).join('\n');
    this.components.set(name, {
      type: 'string',
      ...(description ? { description } : {}),
      enum: values.map((value) => value.name),
    });
    return { $ref: `#/components/schemas/${name}` };
  }

  private mark(message: DescMessage, side: Side): void {
    const known = this.sides.get(message.typeName) ?? new Set();
    if (known.has(side)) return;
    this.sides.set(message.typeName, known.add(side));
    for (const field of message.fields) if (field.message) this.mark(field.message, side);
  }
}

/** Reports whether proto3 JSON includes the field even when unset: every field without presence. */
function isAlwaysShown(field: DescField): boolean {
  if (field.oneof) return false;
  if (field.fieldKind === 'message') return false;
  return field.fieldKind === 'list' || field.fieldKind === 'map' || !field.proto.proto3Optional;
}

/** Limits apply only to requests; the format applies to both sides. */
function schemaFacts(field: DescField, side: Side): JsonObject {
  const facts = fieldFacts(field);
  if (side === 'request') return facts;
  const { pattern, format, examples } = facts;
  return Object.fromEntries(
    Object.entries({ pattern, format, examples }).filter(([, value]) => value !== undefined),
  ) as JsonObject;
}

function scalarSchema(field: DescField & { scalar?: ScalarType }): JsonObject {
  const schema = field.scalar === undefined ? undefined : scalarSchemas[field.scalar];
  if (!schema) throw new Error(`${field.parent.typeName}.${field.name}: the public contract has no such scalar`);
  return schema;
}
