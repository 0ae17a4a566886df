// For tests: the schemas of the custom resources, and the paths of all their fields.
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { crdManifests, type Kind } from '../src/index.ts';

/** The part of a schema that tests read. */
export interface Schema {
  readonly type?: string;
  readonly enum?: readonly string[];
  readonly maxLength?: number;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly items?: Schema;
  readonly additionalProperties?: Schema;
}

const files = {
  Tenant: 'tenant',
  DeviceProfile: 'device-profile',
  ProvisioningTemplate: 'provisioning-template',
  OtaPackage: 'ota-package',
  OtaRollout: 'ota-rollout',
} as const satisfies Record<Kind, string>;

/** Every kind. */
export const kinds = Object.keys(files) as Kind[];

/** Returns the schema of a kind's spec or status. */
export function schemaOf(kind: Kind, part: 'spec' | 'status'): Schema {
  const definition = parse(readFileSync(crdManifests()[files[kind]], 'utf8')) as {
    spec: { versions: { schema: { openAPIV3Schema: Schema } }[] };
  };
  return definition.spec.versions[0]!.schema.openAPIV3Schema.properties![part]!;
}

/** Yields the paths of all fields, an entry of a list as [0] and of a map as someKey. */
export function* pathsIn(schema: Schema, at = ''): Generator<string> {
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const path = at === '' ? name : `${at}.${name}`;
    yield path;
    yield* pathsIn(field, path);
    if (field.items) yield* pathsIn(field.items, `${path}[0]`);
    if (field.additionalProperties) yield* pathsIn(field.additionalProperties, `${path}.someKey`);
  }
}

/** Fields of specs that no request of the API has: it expresses them differently, or not at all. */
export const specOnly: Readonly<Record<Kind, readonly string[]>> = {
  Tenant: ['namespace', 'adminPasswordSecretRef'],
  DeviceProfile: [],
  ProvisioningTemplate: ['keySecretRef', 'keySha256', 'keyBinding'],
  OtaPackage: ['artifactSecretRef'],
  OtaRollout: ['paused', 'desiredState'],
};
