// Checks the definitions against Kubernetes API conventions, and the generated types against the definitions.
import { readFile } from 'node:fs/promises';
import { expect } from 'chai';
import { parse } from 'yaml';
import { generateCustomResourceTypes } from './generate.ts';
import { crdManifests, group, plurals, version } from './src/index.ts';

interface Schema {
  type?: string;
  description?: string;
  default?: unknown;
  enum?: string[];
  format?: string;
  maxLength?: number;
  maxItems?: number;
  maxProperties?: number;
  minimum?: number;
  maximum?: number;
  nullable?: boolean;
  required?: string[];
  properties?: Record<string, Schema>;
  items?: Schema;
  additionalProperties?: Schema;
  'x-kubernetes-list-type'?: string;
  'x-kubernetes-preserve-unknown-fields'?: boolean;
  'x-kubernetes-validations'?: { rule: string; message: string }[];
}

interface Definition {
  metadata: { name: string };
  spec: {
    group: string;
    scope: string;
    names: { kind: keyof typeof plurals; plural: string; shortNames: string[]; categories: string[] };
    versions: {
      name: string;
      subresources: { status?: object };
      additionalPrinterColumns: { name: string; jsonPath: string }[];
      schema: { openAPIV3Schema: Schema };
    }[];
  };
}

/** Yields every schema of a tree with its path, except metadata, which the API server describes itself. */
function* walk(schema: Schema, path: string): Generator<[string, Schema]> {
  if (path.endsWith('.metadata')) return;
  yield [path, schema];
  for (const [name, property] of Object.entries(schema.properties ?? {})) yield* walk(property, `${path}.${name}`);
  if (schema.items) yield* walk(schema.items, `${path}[]`);
  if (schema.additionalProperties) yield* walk(schema.additionalProperties, `${path}{}`);
}

/** Returns what a schema lacks; empty if it is complete. */
function faults(path: string, schema: Schema): string[] {
  const found: string[] = [];
  const must = (holds: boolean, text: string): void => void (holds || found.push(`${path} must ${text}`));
  const root = /^\w+(\.(apiVersion|kind))?$/.test(path);
  must(schema.description !== undefined && schema.description.length > 0, 'have a description');
  must(schema.nullable === undefined, 'not be nullable');
  must(schema['x-kubernetes-preserve-unknown-fields'] === undefined, 'be structural');
  if (schema.type === 'string' && !root)
    must(schema.enum !== undefined || schema.maxLength !== undefined, 'be bounded');
  if (schema.type === 'array') {
    must(schema.maxItems !== undefined, 'have a maxItems');
    must(['set', 'map', 'atomic'].includes(schema['x-kubernetes-list-type'] ?? ''), 'have a list type');
  }
  if (schema.additionalProperties) must(schema.maxProperties !== undefined, 'have a maxProperties');
  if (schema.type === 'integer') {
    must(schema.minimum !== undefined, 'have a minimum');
    must(schema.format === 'int32' || schema.format === 'int64', 'have a format');
    if (/[a-z]Seconds$/.test(path))
      must(schema.format === 'int32' && schema.maximum !== undefined, 'be a bounded int32');
  }
  for (const value of schema.enum ?? []) must(/^[A-Z][A-Za-z0-9]*$/.test(value), `have CamelCase values (${value})`);
  for (const rule of schema['x-kubernetes-validations'] ?? []) {
    must(/\bmust\b/.test(rule.message), `have messages that say what must hold, not "${rule.message}"`);
  }
  for (const name of schema.required ?? []) {
    must(schema.properties?.[name]?.default === undefined, `not default the required field ${name}`);
  }
  return found;
}

describe('custom resource definitions', () => {
  for (const [file, path] of Object.entries(crdManifests())) {
    describe(file, () => {
      let definition: Definition;
      let schema: Schema;
      before(async () => {
        definition = parse(await readFile(path, 'utf8')) as Definition;
        schema = definition.spec.versions[0]!.schema.openAPIV3Schema;
      });

      it('has the group, version and names of the constants', () => {
        const { spec, metadata } = definition;
        expect(spec.group).to.equal(group);
        expect(spec.versions.map((entry) => entry.name)).to.deep.equal([version]);
        expect(spec.names.plural).to.equal(plurals[spec.names.kind]);
        expect(metadata.name).to.equal(`${spec.names.plural}.${group}`);
        expect(spec.names.shortNames).to.have.length(1);
        expect(spec.names.categories).to.deep.equal(['kellet']);
        expect(spec.versions[0]!.subresources).to.have.property('status');
        expect(spec.versions[0]!.additionalPrinterColumns.map((column) => column.name)).to.include('Age');
      });

      it('describes and bounds every field', () => {
        const found = [...walk(schema, definition.spec.names.kind)].flatMap(([name, part]) => faults(name, part));
        expect(found).to.deep.equal([]);
      });

      it('reports its state as conditions, merged by type', () => {
        const status = schema.properties!.status!.properties!;
        expect(status).to.include.keys('observedGeneration', 'conditions');
        expect(status.conditions).to.have.property('x-kubernetes-list-type', 'map');
        expect(status.conditions!.items!.required).to.include.members([
          'type',
          'status',
          'reason',
          'lastTransitionTime',
        ]);
      });
    });
  }

  it('lists devices that did not report in time, as they count as failed', async () => {
    const definition = parse(await readFile(crdManifests()['ota-rollout'], 'utf8')) as Definition;
    const shown = definition.spec.versions[0]!.additionalPrinterColumns.map(({ jsonPath }) => jsonPath);
    expect(shown).to.include.members(['.status.counts.failed', '.status.counts.timedOut', '.status.failurePercent']);
  });

  it('does not default the fields that pause a rollout or suspend a template', async () => {
    for (const [file, field] of [
      ['ota-rollout', 'paused'],
      ['provisioning-template', 'suspended'],
    ] as const) {
      const definition = parse(await readFile(crdManifests()[file], 'utf8')) as Definition;
      const spec = definition.spec.versions[0]!.schema.openAPIV3Schema.properties!.spec!;
      expect(spec.properties![field]).to.not.have.property('default');
    }
  });

  it('match the committed generated types', async () => {
    for (const [name, text] of await generateCustomResourceTypes()) {
      const committed = await readFile(new URL(`src/generated/${name}`, import.meta.url), 'utf8');
      expect(committed, `crds/src/generated/${name}: run npm run generate`).to.equal(text);
    }
  });
});
