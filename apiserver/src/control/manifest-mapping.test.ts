// Walks every field of every custom resource definition, so that a field without a counterpart in the API fails here.
import { create, type DescField, type DescMessage, toJson } from '@bufbuild/protobuf';
import type { Kind } from '@kellet/crds';
import { TenantSchema } from '@kellet/proto/es/kellet/v1/auth_pb.ts';
import { OtaPackageSchema, RolloutSchema } from '@kellet/proto/es/kellet/v1/ota_pb.ts';
import { CreateProfileRequestSchema, ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { TemplateSchema } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { expect } from 'chai';
import { kinds, pathsIn, type Schema, schemaOf, specOnly } from '../../../crds/testing/test-schemas.ts';
import { contractPath } from './field-names.ts';
import {
  changedRequest,
  changeOf,
  differences,
  requestOf,
  requestSchemas,
  specOf,
  type Specs,
} from './manifest-mapping.ts';

/** The response message of each kind. */
const shown: Readonly<Record<Kind, DescMessage>> = {
  Tenant: TenantSchema,
  DeviceProfile: ProfileSchema,
  ProvisioningTemplate: TemplateSchema,
  OtaPackage: OtaPackageSchema,
  OtaRollout: RolloutSchema,
};

/** Fields of requests that are not part of the response. */
const notShown = ['admin_email', 'admin_password'];

/** Returns a value with every field set to a non-default value; `index` selects the enum values. */
function sample({ type, enum: words, properties, items, additionalProperties }: Schema, index: number): unknown {
  if (words) return words[index % words.length];
  if (properties) {
    return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, sample(schema, index)]));
  }
  if (items) return [sample(items, index)];
  if (additionalProperties) return { some_key: sample(additionalProperties, index) };
  return type === 'boolean' ? true : type === 'string' ? `text ${index}` : 7 + index;
}

/** Returns the spec without references and without fields that no request has. */
const withoutOnly = (kind: Kind, spec: object): object =>
  Object.fromEntries(
    Object.entries(spec).filter(([name]) => {
      const references = (differences[requestSchemas[kind].typeName] ?? []).filter(({ isReference }) => isReference);
      return !specOnly[kind].includes(name) && !references.some((reference) => reference.spec === name);
    }),
  );

/** Reports whether a message has a field at this path. */
function hasField(schema: DescMessage, path: string): boolean {
  let message: DescMessage | undefined = schema;
  let isKey = false;
  for (const part of path.replaceAll('[0]', '').split('.')) {
    if (isKey) {
      isKey = false;
      continue;
    }
    const field: DescField | undefined = message?.fields.find(({ name }) => name === part);
    if (!field) return false;
    message = field.message;
    isKey = field.fieldKind === 'map';
  }
  return true;
}

describe('the mapping between specs and requests', () => {
  for (const kind of kinds) {
    describe(kind, () => {
      const schema = schemaOf(kind, 'spec');
      const request = requestSchemas[kind];

      it('has a field in the request and in the response for every field of the spec', () => {
        const wrong = [...pathsIn(schema)].filter((path) => {
          if (specOnly[kind].some((only) => path === only || path.startsWith(`${only}.`))) {
            return contractPath(kind, path) !== undefined;
          }
          const found = contractPath(kind, path);
          // Objects whose fields are at the top level of a request.
          if (found === undefined)
            return !(differences[request.typeName] ?? []).some((d) => d.spec?.startsWith(`${path}.`));
          return !hasField(request, found) || !(notShown.includes(found) || hasField(shown[kind], found));
        });
        expect(wrong).to.deep.equal([]);
      });

      it('loses no value in conversion to the request and back', () => {
        // As many samples as the longest enum has values.
        for (let index = 0; index < 7; index += 1) {
          const spec = sample(schema, index) as Specs[Kind];
          const there = requestOf(kind, spec);
          const expected = withoutOnly(kind, spec);
          expect(specOf(kind, there as never)).to.deep.equal(expected);
          // Conversion to JSON fails if a value does not have its field's type.
          toJson(request, there as never);
        }
      });

      it('sets every field of the request that is not a reference', () => {
        const there = toJson(request, requestOf(kind, sample(schema, 0) as Specs[Kind]) as never, {
          useProtoFieldName: true,
          alwaysEmitImplicit: false,
        });
        const unset = request.fields.filter(({ name }) => {
          const difference = differences[request.typeName]?.find(({ field }) => field === name);
          return (!difference || (difference.spec && !difference.isReference)) && !(name in (there as object));
        });
        expect(unset.map(({ name }) => name)).to.deep.equal([]);
      });
    });
  }

  it('names only fields that exist', () => {
    const paths = kinds.flatMap((kind) => [...pathsIn(schemaOf(kind, 'spec'))].map((path) => `${kind}.${path}`));
    for (const [typeName, list] of Object.entries(differences)) {
      const kind = kinds.find((one) => requestSchemas[one].typeName === typeName);
      for (const { field, spec } of list) {
        if (kind) expect(requestSchemas[kind].fields.map(({ name }) => name)).to.include(field);
        if (spec) {
          expect(
            paths.some((path) => (kind ? path === `${kind}.${spec}` : path.endsWith(`.${spec}`))),
            `${typeName} ${spec}`,
          ).to.equal(true);
        }
      }
    }
  });

  it('omits unset fields from the spec, so that REST does not own them', () => {
    expect(specOf('DeviceProfile', create(CreateProfileRequestSchema))).to.deep.equal({});
    expect(
      specOf('DeviceProfile', create(CreateProfileRequestSchema, { telemetrySchema: {}, otaPolicy: {} })),
    ).to.deep.equal(
      // Not empty, because Kubernetes would turn an empty object into null.
      { telemetrySchema: { additionalKeys: 'Allow' }, otaPolicy: { requireSignature: false } },
    );
  });

  it('keeps zeros of optional fields', () => {
    const keys = { t: { type: 'Number' as const, min: 0, max: 0 } };
    expect(specOf('DeviceProfile', requestOf('DeviceProfile', { telemetrySchema: { keys } }))).to.deep.equal({
      telemetrySchema: { keys },
    });
  });

  it('turns an unknown enum value into 0, which checks reject', () => {
    for (const mode of ['sometimes', 'ModeUnspecified', 'toString'] as never[]) {
      expect(requestOf('DeviceProfile', { anchoringPolicy: { mode } }).anchoringPolicy!.mode).to.equal(0);
    }
  });

  it('changes only the fields of the mask, and removes those that the update leaves unset', () => {
    const mask = { paths: ['type', 'ota_policy', 'default_tags'] };
    const update = { type: 'pump', offlineAfterSeconds: 9, defaultTags: {} };
    const request = changedRequest('DeviceProfile', mask, update);
    expect(changeOf('DeviceProfile', mask, request)).to.deep.equal([
      { path: ['type'], value: 'pump' },
      { path: ['otaPolicy'], value: undefined },
      { path: ['defaultTags'], value: undefined },
    ]);
  });

  it('changes a part of a nested message, and completes it with what it had', () => {
    const mask = { paths: ['ota_policy.max_attempts', 'ota_policy.window.days'] };
    const update = create(CreateProfileRequestSchema, { otaPolicy: { maxAttempts: 3, window: { days: ['mon'] } } });
    const current = create(CreateProfileRequestSchema, {
      type: 'pump',
      otaPolicy: { maxAttempts: 9, requireSignature: true, window: { start: '22:00', end: '04:00', days: ['sun'] } },
    });
    const request = changedRequest('DeviceProfile', mask, update, current);
    expect(specOf('DeviceProfile', request)).to.deep.equal({
      otaPolicy: {
        maxAttempts: 3,
        requireSignature: true,
        window: { start: '22:00', end: '04:00', days: ['Monday'] },
      },
    });
    expect(changeOf('DeviceProfile', mask, request)).to.deep.equal([
      { path: ['otaPolicy', 'maxAttempts'], value: 3 },
      { path: ['otaPolicy', 'window', 'days'], value: ['Monday'] },
    ]);
  });
});
