// Generates the TypeScript types of the custom resources into src/generated from the YAML files beside this file.
// The output is deterministic.
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import { compile } from 'json-schema-to-typescript';
import { parse } from 'yaml';
import { crdManifests } from './src/manifests.ts';

type Schema = { [key: string]: unknown; properties?: Record<string, Schema>; items?: Schema };

interface CustomResourceDefinition {
  spec: {
    group: string;
    names: { kind: string };
    versions: { name: string; schema: { openAPIV3Schema: Schema } }[];
  };
}

/** Schemas used by several resources, by property name; each becomes one shared type. */
const sharedTypes: Record<string, { name: string; description: string; ofItems?: boolean }> = {
  anchoringPolicy: { name: 'AnchoringPolicy', description: 'How points are anchored on the blockchain.' },
  conditions: { name: 'Condition', description: "One aspect of a resource's state.", ofItems: true },
  otaPolicy: { name: 'OtaPolicy', description: 'How updates reach devices.' },
  telemetrySchema: { name: 'TelemetrySchema', description: 'Schema of telemetry points.' },
  window: { name: 'UpdateWindow', description: 'Time window in which update commands may be sent.' },
};

const banner = '// Generated from the custom resource definitions by crds/generate.ts. Do not edit.';
const output = new URL('src/generated/', import.meta.url);

/** Removes the Kubernetes extensions, which do not affect the types. */
function withoutExtensions(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(withoutExtensions);
  if (schema === null || typeof schema !== 'object') return schema;
  return Object.fromEntries(
    Object.entries(schema)
      .filter(([key]) => !key.startsWith('x-kubernetes-'))
      .map(([key, value]) => [key, withoutExtensions(value)]),
  );
}

/** Replaces shared schemas by references to their type and collects them. Throws if two with the same name differ. */
function extractShared(schema: Schema, shared: Map<string, Schema>): Schema {
  const result: Schema = { ...schema };
  if (schema.items) result.items = extractShared(schema.items, shared);
  if (schema.additionalProperties && typeof schema.additionalProperties === 'object') {
    result.additionalProperties = extractShared(schema.additionalProperties as Schema, shared);
  }
  if (!schema.properties) return result;
  result.properties = {};
  for (const [name, property] of Object.entries(schema.properties)) {
    const type = sharedTypes[name];
    if (!type) {
      result.properties[name] = extractShared(property, shared);
      continue;
    }
    const { default: _default, description: _description, ...own } = type.ofItems ? property.items! : property;
    const body = extractShared({ ...own, title: type.name, description: type.description }, shared);
    const known = shared.get(type.name);
    if (known && !isDeepStrictEqual(known, body))
      throw new Error(`the schemas of ${name} must be identical everywhere`);
    shared.set(type.name, body);
    result.properties[name] = {
      description: property.description,
      tsType: type.ofItems ? `${type.name}[]` : type.name,
    };
  }
  return result;
}

async function toTypeScript(name: string, schema: Schema): Promise<string> {
  const text = await compile(schema, name, {
    additionalProperties: false,
    bannerComment: '',
    style: { printWidth: 120, singleQuote: true },
    ignoreMinAndMaxItems: true,
    strictIndexSignatures: false,
  });
  return text.trim();
}

/** Returns the type names that a text refers to, for its import line. */
function referencesIn(text: string, names: Iterable<string>): string[] {
  return [...names].filter((name) => new RegExp(`\\b${name}\\b`).test(text)).sort();
}

/** Returns the generated files: name → text. */
export async function generateCustomResourceTypes(): Promise<Map<string, string>> {
  const shared = new Map<string, Schema>();
  const resources: { file: string; kind: string; text: string }[] = [];
  for (const [file, path] of Object.entries(crdManifests())) {
    const definition = parse(await readFile(path, 'utf8')) as CustomResourceDefinition;
    const { group, names, versions } = definition.spec;
    const version = versions[0]!;
    const root = extractShared(withoutExtensions(version.schema.openAPIV3Schema) as Schema, shared);
    const { spec, status } = root.properties as { spec: Schema; status: Schema };
    const schema: Schema = {
      ...root,
      required: ['apiVersion', 'kind', 'metadata', 'spec'],
      properties: {
        apiVersion: { const: `${group}/${version.name}`, description: root.properties?.apiVersion?.description },
        kind: { const: names.kind, description: root.properties?.kind?.description },
        metadata: { tsType: 'ObjectMeta', description: 'Standard object metadata.' },
        spec: { ...spec, title: `${names.kind}Spec` },
        status: { ...status, title: `${names.kind}Status` },
      },
    };
    resources.push({ file, kind: names.kind, text: await toTypeScript(names.kind, schema) });
  }
  const files = new Map<string, string>();
  const sharedTexts: string[] = [];
  for (const [name, schema] of [...shared].sort(([a], [b]) => (a < b ? -1 : 1))) {
    sharedTexts.push(await toTypeScript(name, schema));
  }
  files.set('shared.ts', `${banner}\n${sharedTexts.join('\n\n')}\n`);
  for (const { file, text } of resources) {
    const imports = [`import type { ObjectMeta } from '../object-meta.ts';`];
    const references = referencesIn(text, shared.keys());
    if (references.length > 0) imports.push(`import type { ${references.join(', ')} } from './shared.ts';`);
    files.set(`${file}.ts`, `${banner}\n${imports.join('\n')}\n\n${text}\n`);
  }
  return files;
}

if (import.meta.main) {
  const files = await generateCustomResourceTypes();
  await rm(output, { recursive: true, force: true });
  await mkdir(output, { recursive: true });
  for (const [name, text] of files) await writeFile(new URL(name, output), text);
}
