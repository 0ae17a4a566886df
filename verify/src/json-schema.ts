// Validates a value against the part of JSON Schema (draft 2020-12) that the bundle schema uses. General validators
// compile code at run time, which a content security policy may forbid.

/** A schema. Unknown keywords are rejected as a bug in the schema. */
export type Schema = Readonly<Record<string, unknown>>;

/** Where a value violates its schema: JSON pointers into both, and what was expected. */
export interface SchemaViolation {
  instancePath: string;
  schemaPath: string;
  message: string;
}

type Check = (value: unknown, argument: never, at: Position) => SchemaViolation | undefined;

interface Position {
  root: Schema;
  schema: Schema;
  instancePath: string;
  schemaPath: string;
}

/** Keywords that only describe. */
const ANNOTATIONS = new Set(['$schema', '$id', '$defs', 'title', 'description']);

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const typeTests: Record<string, (value: unknown) => boolean> = {
  object: isObject,
  array: Array.isArray,
  string: (value) => typeof value === 'string',
  boolean: (value) => typeof value === 'boolean',
  integer: Number.isInteger,
};

/** Returns the check of a keyword that applies to values of one type. */
function bound<V, A>(applies: (value: unknown) => value is V, holds: (value: V, argument: A) => boolean, says: string) {
  return (value: unknown, argument: A, at: Position) =>
    !applies(value) || holds(value, argument) ? undefined : fail(at, `${says} ${String(argument)}`);
}

const isNumber = (value: unknown): value is number => typeof value === 'number';
const isString = (value: unknown): value is string => typeof value === 'string';
const isArray = (value: unknown): value is unknown[] => Array.isArray(value);
const codePoints = (text: string): number => [...text].length;

/** Reports whether a pattern matches; false for a text so long that the matcher overflows the stack. */
function matches(text: string, pattern: string): boolean {
  try {
    return new RegExp(pattern, 'u').test(text);
  } catch (error) {
    if (error instanceof RangeError) return false;
    throw error;
  }
}

const keywords: Record<string, Check> = {
  $ref: (value, reference: string, at) => {
    const name = reference.replace('#/$defs/', '');
    const target = (at.root['$defs'] as Record<string, Schema>)[name]!;
    return violationAt(value, { ...at, schema: target, schemaPath: `#/$defs/${name}` });
  },
  type: (value, type: string, at) => (typeTests[type]!(value) ? undefined : fail(at, `must be of type ${type}`)),
  const: (value, constant: unknown, at) =>
    value === constant ? undefined : fail(at, `must be ${JSON.stringify(constant)}`),
  enum: (value, choices: unknown[], at) =>
    choices.includes(value) ? undefined : fail(at, `must be one of ${choices.join(', ')}`),
  minimum: bound(isNumber, (value, least: number) => value >= least, 'must be at least'),
  maximum: bound(isNumber, (value, most: number) => value <= most, 'must be at most'),
  minLength: bound(isString, (value, least: number) => codePoints(value) >= least, 'must have a length of at least'),
  maxLength: bound(isString, (value, most: number) => codePoints(value) <= most, 'must have a length of at most'),
  pattern: bound(isString, matches, 'must match'),
  minItems: bound(isArray, (value, least: number) => value.length >= least, 'must have at least this many items:'),
  maxItems: bound(isArray, (value, most: number) => value.length <= most, 'must have at most this many items:'),
  items: (value, schema: Schema, at) =>
    isArray(value) ? first(value, (item, i) => violationAt(item, step(at, schema, String(i), 'items'))) : undefined,
  required: (value, names: string[], at) =>
    isObject(value)
      ? first(names, (name) => (Object.hasOwn(value, name) ? undefined : fail(at, `must have the field ${name}`)))
      : undefined,
  properties: (value, properties: Record<string, Schema>, at) =>
    isObject(value)
      ? first(Object.entries(properties), ([name, schema]) =>
          Object.hasOwn(value, name)
            ? violationAt(value[name], step(at, schema, name, `properties/${name}`))
            : undefined,
        )
      : undefined,
  additionalProperties: (value, _allowed: false, at) =>
    isObject(value)
      ? first(Object.keys(value), (name) =>
          Object.hasOwn(at.schema['properties'] as object, name)
            ? undefined
            : fail(at, `must not have the field ${JSON.stringify(name)}`),
        )
      : undefined,
};

/** Returns the first violation of `schema` in `value`, or undefined if it is valid. */
export function violation(schema: Schema, value: unknown): SchemaViolation | undefined {
  return violationAt(value, { root: schema, schema, instancePath: '', schemaPath: '#' });
}

function violationAt(value: unknown, at: Position): SchemaViolation | undefined {
  return first(Object.entries(at.schema), ([keyword, argument]) => {
    if (ANNOTATIONS.has(keyword)) return undefined;
    const check = keywords[keyword];
    if (check === undefined) throw new Error(`the schema uses ${keyword}, which is not implemented`);
    return check(value, argument as never, { ...at, schemaPath: `${at.schemaPath}/${keyword}` });
  });
}

function first<T>(
  items: Iterable<T>,
  check: (item: T, index: number) => SchemaViolation | undefined,
): SchemaViolation | undefined {
  let index = 0;
  for (const item of items) {
    const found = check(item, index++);
    if (found !== undefined) return found;
  }
  return undefined;
}

function step(at: Position, schema: Schema, key: string, under: string): Position {
  const keyword = at.schemaPath.replace(/\/[^/]*$/, '');
  return { root: at.root, schema, instancePath: `${at.instancePath}/${key}`, schemaPath: `${keyword}/${under}` };
}

function fail(at: Position, message: string): SchemaViolation {
  return { instancePath: at.instancePath, schemaPath: at.schemaPath, message };
}
