// Maps the spec of a custom resource to the message that creates the same resource through the API, and back. Fields with
// the same name correspond; all differences are listed here. manifest-mapping.test.ts compares both with the custom
// resource definitions, and fails if either side lacks a field.
import {
  create,
  type DescEnum,
  type DescField,
  type DescMessage,
  isFieldSet,
  type MessageShape,
} from '@bufbuild/protobuf';
import type {
  DeviceProfileSpec,
  Kind,
  OtaPackageSpec,
  OtaRolloutSpec,
  ProvisioningTemplateSpec,
  TenantSpec,
} from '@kellet/crds';
import { CreateTenantRequestSchema } from '@kellet/proto/es/kellet/v1/auth_pb.ts';
import {
  CreatePackageRequestSchema,
  CreateRolloutRequestSchema,
  OtaPackage_Type,
} from '@kellet/proto/es/kellet/v1/ota_pb.ts';
import { CreateProfileRequestSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { CreateTemplateRequestSchema } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import type { UpdateMask } from '../platform/requests/fields.ts';
import { mergedField } from '../platform/requests/merged-field.ts';

/**
 * The spec of each kind. A Tenant's is applied with its administrator's initial password, a package's with the values of its
 * Secret, which no manifest contains.
 */
export interface Specs {
  Tenant: TenantSpec & { adminPassword?: string };
  DeviceProfile: DeviceProfileSpec;
  ProvisioningTemplate: ProvisioningTemplateSpec;
  OtaPackage: OtaPackageSpec & { artifactCredentials?: Readonly<Record<string, string>> };
  OtaRollout: OtaRolloutSpec;
}

/** The message that creates a resource of each kind through the API. */
export const requestSchemas = {
  Tenant: CreateTenantRequestSchema,
  DeviceProfile: CreateProfileRequestSchema,
  ProvisioningTemplate: CreateTemplateRequestSchema,
  OtaPackage: CreatePackageRequestSchema,
  OtaRollout: CreateRolloutRequestSchema,
} as const satisfies Record<Kind, DescMessage>;

type Requests = { [K in Kind]: MessageShape<(typeof requestSchemas)[K]> };

/** References: by name in a spec and by id in a request. Callers convert them. */
type Reference = 'profileRef' | 'packageRef' | 'targetProfileRef' | 'rollbackPackageRef';

/** A field of a message that a spec does not have under the same name and in the same form. */
export interface Difference {
  readonly field: string;
  /** Its path in the spec; absent if the spec has no such field. */
  readonly spec?: string;
  readonly isReference?: true;
  /** Converts the spec's value, undefined if unset; by default by the type of the field. */
  readonly toRequest?: (value: unknown) => unknown;
  /** Converts the message's value; by default by the type of the field. Undefined leaves the field out. */
  readonly toSpec?: (value: unknown) => unknown;
}

const weekdays = ['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'];
const shortDay = (day: string): string => day.slice(0, 3).toLowerCase();
const packageTypes: Readonly<Record<string, OtaPackage_Type>> = {
  Firmware: OtaPackage_Type.fw,
  Software: OtaPackage_Type.sw,
};

/** Every difference, by the message that has the field. */
export const differences: Readonly<Record<string, readonly Difference[]>> = {
  'kellet.v1.CreateTenantRequest': [{ field: 'tenant_id' }, { field: 'admin_password' }],
  'kellet.v1.CreateProfileRequest': [{ field: 'name' }],
  'kellet.v1.CreateTemplateRequest': [
    { field: 'name' },
    { field: 'profile_id', spec: 'profileRef', isReference: true },
    { field: 'default_group_ids', spec: 'defaultGroups' },
    {
      field: 'one_time',
      spec: 'keyUse',
      toRequest: (use) => use === 'Once',
      toSpec: (oneTime) => (oneTime ? 'Once' : 'Unlimited'),
    },
    {
      field: 'enabled',
      spec: 'suspended',
      toRequest: (suspended) => !suspended,
      toSpec: (enabled) => (enabled === false ? true : undefined),
    },
  ],
  'kellet.v1.CreatePackageRequest': [
    { field: 'name' },
    {
      field: 'type',
      spec: 'type',
      toRequest: (type) => packageTypes[String(type)],
      toSpec: (type) => Object.keys(packageTypes).find((name) => packageTypes[name] === type),
    },
    { field: 'artifact_uri', spec: 'artifact.uri' },
    { field: 'sha256', spec: 'artifact.sha256' },
    { field: 'signature', spec: 'artifact.signature' },
    { field: 'size_bytes', spec: 'artifact.sizeBytes' },
  ],
  'kellet.v1.CreateRolloutRequest': [
    { field: 'name' },
    { field: 'package_id', spec: 'packageRef', isReference: true },
    { field: 'target_profile_id', spec: 'targetProfileRef', isReference: true },
    { field: 'rollback_package_id', spec: 'rollbackPackageRef', isReference: true },
  ],
  'kellet.v1.Window': [
    {
      field: 'days',
      spec: 'days',
      toRequest: (days = []) => (days as string[]).map(shortDay),
      toSpec: (days) => {
        const stated = (days as string[]).flatMap((day) => weekdays.filter((weekday) => shortDay(weekday) === day));
        return stated.length > 0 ? stated : undefined;
      },
    },
  ],
};

/**
 * Values that represent an empty message, by message name; other empty messages are omitted. If an empty object is applied
 * over one whose fields we own, Kubernetes turns it into null and rejects that.
 */
const emptyObjects: Readonly<Record<string, object>> = {
  'kellet.v1.OtaPolicy': { requireSignature: false },
  'kellet.v1.TelemetrySchema': { additionalKeys: 'Allow' },
};

type Fields = Record<string, unknown>;

/** Returns the message that describes the same resource as a spec, without references. An unknown enum value becomes 0. */
export const requestOf = <K extends Kind>(kind: K, spec: Specs[K]): Requests[K] =>
  toMessage(requestSchemas[kind], { ...spec }) as Requests[K];

/** Returns the spec of a checked message, without references and unset fields. */
export const specOf = <K extends Kind>(kind: K, request: Requests[K]): Omit<Specs[K], Reference> =>
  toObject(requestSchemas[kind], request) as Omit<Specs[K], Reference>;

/**
 * Returns the fields of an update that its mask names, as the message that creates the resource has them. What the mask
 * omits of a nested message is that of `current`.
 */
export function changedRequest<K extends Kind>(
  kind: K,
  mask: UpdateMask,
  update: object,
  current: object = {},
): Requests[K] {
  const request = create(requestSchemas[kind]) as unknown as Fields;
  const named = new Set(mask.paths.map((path) => path.split('.', 1)[0]));
  for (const { name, localName, fieldKind, message } of requestSchemas[kind].fields) {
    if (!named.has(name)) continue;
    const values = { current: (current as Fields)[localName], update: (update as Fields)[localName] };
    const value =
      fieldKind === 'message'
        ? mergedField(message, name, mask, values as Record<'current' | 'update', MessageShape<DescMessage>>)
        : values.update;
    if (value !== undefined) request[localName] = value;
  }
  return request as unknown as Requests[K];
}

/**
 * Returns the parts of the spec that a mask names, with their values in the message: undefined for those that it leaves
 * unset. No references.
 */
export function changeOf(
  kind: Kind,
  mask: UpdateMask,
  request: Requests[Kind],
): { readonly path: readonly string[]; readonly value: unknown }[] {
  const spec: unknown = toObject(requestSchemas[kind], request);
  return mask.paths.flatMap((named) => {
    const path = specPath(kind, named);
    return path ? [{ path, value: path.reduce((value, name) => (value as Fields | undefined)?.[name], spec) }] : [];
  });
}

/** Returns the path in the spec of a field of the request, or undefined for a reference and a field that no spec has. */
function specPath(kind: Kind, named: string): string[] | undefined {
  const path: string[] = [];
  let message: DescMessage | undefined = requestSchemas[kind];
  for (const name of named.split('.')) {
    const field: DescField | undefined = message?.fields.find((candidate) => candidate.name === name);
    const difference: Difference | undefined = message && field && differenceOf(message, field);
    if (!field || (difference && (difference.isReference || !difference.spec))) return undefined;
    path.push(...(difference?.spec ?? field.localName).split('.'));
    message = field.message;
  }
  return path;
}

/** Returns the name in specs of a value of an enum: `per_event` → `PerEvent`. */
const enumWord = (name: string): string =>
  name.replace(/(^|_)([a-z])/g, (_match, _start, letter: string) => letter.toUpperCase());

const differenceOf = (message: DescMessage, field: DescField): Difference | undefined =>
  differences[message.typeName]?.find((difference) => difference.field === field.name);

function toMessage(schema: DescMessage, object: Fields): Fields {
  const message = create(schema) as unknown as Fields;
  for (const field of schema.fields) {
    const difference = differenceOf(schema, field);
    if (difference && (difference.isReference || !difference.spec)) continue;
    const stated = (difference?.spec ?? field.localName)
      .split('.')
      .reduce<unknown>((value, name) => (value as Fields | undefined)?.[name] ?? undefined, object);
    const value = difference?.toRequest
      ? difference.toRequest(stated)
      : stated === undefined
        ? undefined
        : each(field, stated, (one) => {
            if (field.message) return toMessage(field.message, one as Fields);
            return field.enum ? enumNumber(field.enum, one) : one;
          });
    if (value !== undefined) message[field.localName] = value;
  }
  return message;
}

function toObject(schema: DescMessage, message: Fields): Fields {
  const object: Fields = {};
  for (const field of schema.fields) {
    const difference = differenceOf(schema, field);
    if (difference && (difference.isReference || !difference.spec)) continue;
    const value = difference?.toSpec ? difference.toSpec(message[field.localName]) : stated(field, message);
    if (value === undefined) continue;
    const path = (difference?.spec ?? field.localName).split('.');
    const last = path.pop()!;
    path.reduce((parent, name) => (parent[name] ??= {}) as Fields, object)[last] = value;
  }
  return object;
}

function stated(field: DescField, message: Fields): unknown {
  if (!isFieldSet(message as never, field)) return undefined;
  const value = each(field, message[field.localName], (one) => {
    if (field.message) return toObject(field.message, one as Fields);
    return field.enum ? enumWord(field.enum.value[one as number]?.name ?? '') : one;
  });
  const isEmpty = field.fieldKind === 'message' && Object.keys(value as object).length === 0;
  return isEmpty ? emptyObjects[field.message.typeName] : value;
}

/** Converts a value of a field: each entry of a list or map, or the value itself. */
function each(field: DescField, value: unknown, convert: (one: unknown) => unknown): unknown {
  if (field.fieldKind === 'list') return (value as unknown[]).map(convert);
  if (field.fieldKind !== 'map') return convert(value);
  return Object.fromEntries(Object.entries(value as Fields).map(([key, one]) => [key, convert(one)]));
}

const enumNumber = ({ values }: DescEnum, word: unknown): number =>
  values.find(({ name, number }) => number !== 0 && enumWord(name) === word)?.number ?? 0;
