// The table of the chart's values, and that every value of the chart is described, checked and used.
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'chai';
import { valueRows } from './values-page.ts';

const chart = join(import.meta.dirname, '../../charts/kellet');
const read = (path: string) => readFileSync(join(chart, path), 'utf8');

interface Schema {
  $ref?: string;
  properties?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
  type?: string | string[];
}

describe('the table of values', () => {
  it('has every value with its default and the comment above it', () => {
    const source = `# About the file.

# How many.
replicas: 2 # not this
image:
  # A name | a path.
  # In two lines.
  name: a/b
  tag: ''
# A group.
group:
  # One of it.
  one: {}
  list: [{ a: 1 }]
  pair: { key: uri, secret: '' }
`;
    expect(valueRows(source)).to.deep.equal([
      { path: 'replicas', fallback: '2', text: 'How many.' },
      { path: 'image.name', fallback: 'a/b', text: 'A name \\| a path. In two lines.' },
      { path: 'image.tag', fallback: '""', text: '' },
      { path: 'group', fallback: '', text: 'A group.' },
      { path: 'group.one', fallback: '{}', text: 'One of it.' },
      { path: 'group.list', fallback: '[ { a: 1 } ]', text: '' },
      { path: 'group.pair', fallback: '{ key: uri, secret: "" }', text: '' },
    ]);
  });
});

describe('the values of the chart', () => {
  const rows = valueRows(read('values.yaml'));
  const schema = JSON.parse(read('values.schema.json')) as Schema & { definitions: Record<string, Schema> };
  const resolve = (found: Schema | undefined): Schema | undefined =>
    found?.$ref ? schema.definitions[found.$ref.replace('#/definitions/', '')] : found;
  const at = (path: string): Schema | undefined =>
    path.split('.').reduce<Schema | undefined>((found, key) => resolve(found?.properties?.[key]), schema);

  it('are all in the schema, which allows no others', () => {
    for (const { path } of rows) {
      expect(at(path), path).not.to.equal(undefined);
      for (let end = path.lastIndexOf('.'); end > 0; end = path.lastIndexOf('.', end - 1)) {
        expect(at(path.slice(0, end))!.additionalProperties, path.slice(0, end)).to.equal(false);
      }
    }
  });

  it('are those of the schema', () => {
    const known = new Set(rows.map(({ path }) => path));
    const check = (found: Schema, prefix: string): void => {
      for (const [key, value] of Object.entries(found.properties ?? {})) {
        const path = `${prefix}${key}`;
        const resolved = resolve(value)!;
        // Helm adds `global`; the settings of a target are those of apiserver.
        if (path === 'global' || prefix.startsWith('split.')) continue;
        const isRow = known.has(path);
        if (!isRow) expect(resolved.properties, `${path} is not in values.yaml`).not.to.equal(undefined);
        // A default in one line, such as a reference to a Secret, has no rows for its keys.
        if (resolved.properties && !(isRow && rows.find((row) => row.path === path)!.fallback !== '')) {
          check(resolved, `${path}.`);
        }
      }
    };
    check(schema, '');
  });

  it('are used by a template', () => {
    const templates = globSync('templates/**/*', { cwd: chart, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => readFileSync(join(entry.parentPath, entry.name), 'utf8'))
      .join('\n');
    for (const { path, fallback } of rows) {
      if (fallback === '' || path.startsWith('split.')) continue;
      // Templates take some groups as a whole, under another name.
      const name = path.split('.').at(-1)!;
      expect(templates, path).to.match(new RegExp(`\\.${name}\\b|"${name}"`));
    }
  });
});
