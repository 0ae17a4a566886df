// Generates the tables and examples in docs/events.md from the kinds of events and the OpenAPI document (npm run generate).
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { type EventKind, eventKinds, exampleOf, nameOf } from '../events.ts';

interface Schema {
  readonly $ref?: string;
  readonly type?: string;
  readonly format?: string;
  readonly description?: string;
  readonly enum?: readonly string[];
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly required?: readonly string[];
}

const file = path.join(import.meta.dirname, '../../../../docs/events.md');
const document = JSON.parse(readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json')), 'utf8')) as {
  components: { schemas: Readonly<Record<string, Schema>> };
};

/** Follows a reference; a description beside it stays. */
function resolved(schema: Schema): Schema {
  if (schema.$ref === undefined) return schema;
  const target = document.components.schemas[schema.$ref.split('/').at(-1)!]!;
  return { ...target, description: schema.description ?? target.description ?? '' };
}

/** Returns the type of a value in words. */
function typeOf(schema: Schema): string {
  const { type = '', format, enum: values, items, additionalProperties: others } = resolved(schema);
  if (values) return values.map((value) => (value === '' ? 'empty' : `\`${value}\``)).join(', ');
  if (items) return `array of ${typeOf(items)}`;
  if (typeof others === 'object') return `object of ${typeOf(others)}`;
  return format === 'uuid' || format === 'date-time' ? `string (${format})` : type;
}

/** Returns the rows of an object's properties, those of objects within it included. */
function rows(schema: Schema, prefix = ''): string[] {
  const { properties = {}, required = [] } = resolved(schema);
  return Object.entries(properties).flatMap(([name, property]) => {
    const at = `${prefix}${name}`;
    const inner = property.items ? resolved(property.items) : resolved(property);
    const description = resolved(property).description?.replaceAll('\n', ' ') ?? '';
    // Enums and messages of the contract are always there, unless nothing was set.
    const optional = required.includes(name) || property.$ref !== undefined ? '' : ' *';
    const own = `| \`${at}\`${optional} | ${typeOf(property)} | ${description} |`;
    return [own, ...(inner.properties ? rows(inner, `${at}${property.items ? '[].' : '.'}`) : [])];
  });
}

const yes = (is: boolean): string => (is ? 'yes' : '—');

const table = [
  '| subject | published when | in the stream | webhook |',
  '|---|---|---|---|',
  ...eventKinds.flatMap(({ subjects, stored, forTenants }) =>
    Object.entries(subjects).map(
      ([subject, when]) =>
        `| \`${subject}\` | ${when} | ${yes(stored)} | ${forTenants ? `\`${nameOf(subject)}\`` : '—'} |`,
    ),
  ),
].join('\n');

function section(kind: EventKind): string {
  const fields = rows(kind.data);
  const description = kind.data['description'];
  const parts = [
    `## ${Object.keys(kind.subjects)
      .map((subject) => `\`${nameOf(subject)}\``)
      .join(', ')}`,
    kind.resource && `\`subject\` is ${kind.resource}.`,
    typeof description === 'string' && description,
    kind.notes.join(' '),
    fields.length > 0 && ['| field of `data` | type | content |', '|---|---|---|', ...fields].join('\n'),
    fields.some((row) => row.includes('` * |')) && '\\* absent if there is no value',
    ['```json', JSON.stringify(exampleOf(kind), null, 2), '```'].join('\n'),
  ];
  return parts.filter(Boolean).join('\n\n');
}

const generated = { subjects: table, kinds: eventKinds.map(section).join('\n\n') };
const end = '<!-- end of what is generated -->';
let page = readFileSync(file, 'utf8');
for (const [name, text] of Object.entries(generated)) {
  const start = `<!-- generated: ${name} -->`;
  const [before = '', rest = ''] = page.split(start);
  page = `${before}${start}\n\n${text}\n\n${rest.slice(rest.indexOf(end))}`;
}
writeFileSync(file, page);
