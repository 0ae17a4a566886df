// ProvisioningService: callers create, change and list templates. Keys are generated here and returned once; the custom
// resource and the database hold only their SHA-256.
import { create } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { provisionKeyBinding, sealedKeyAnnotation } from '@kellet/crds';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import {
  type ProvisioningService,
  type Template,
  Template_KeyState,
  TemplateSchema,
} from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { refusalError } from '../../control/applier.ts';
import { changedRequest, changeOf, specOf } from '../../control/manifest-mapping.ts';
import { credentialTypeField } from '../../device-registry/devices/credential-type.ts';
import { unknownGroups } from '../../device-registry/devices/group-members.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { failedPrecondition, invalidArgument, notFound } from '../../platform/errors.ts';
import { isId, namedId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Paging } from '../../platform/requests/paging.ts';
import type { CallContext, Implementation } from '../../platform/rpc.ts';
import { nameTaken, resourceName } from '../../resources/resource-names.ts';
import type { ResourceWriter, SpecChange } from '../../resources/resource-writer.ts';
import { findProfile } from './profile-store.ts';
import { mintProvisionKey, provisionKeyHash } from './provision-key.ts';
import { keyOf, type TemplateApplier } from './template-applier.ts';
import {
  findTemplate,
  findTemplateByName,
  listTemplates,
  type TemplateCursor,
  type TemplateRow,
} from './template-store.ts';

/** The methods of ProvisioningService for templates. */
export type TemplateMethods = Omit<Implementation<typeof ProvisioningService>, 'claimDevice'>;

const credentialTypes = {
  api_key: Credential_Type.api_key,
  psk: Credential_Type.psk,
  certificate: Credential_Type.certificate,
} as const;

const updatable = [
  'name',
  'profile_id',
  'hardware_id_pattern',
  'one_time',
  'expires_in_seconds',
  'credential_type',
  'default_group_ids',
  'enabled',
] as const;

function toTemplate(row: TemplateRow, provisionKey?: string): Template {
  const { state, expiresAt } = keyOf(row);
  return create(TemplateSchema, {
    templateId: row.template_id,
    name: row.name,
    profileId: row.profile_id,
    hardwareIdPattern: row.hardware_id_pattern,
    oneTime: row.one_time,
    expiresInSeconds: row.expires_in_seconds ?? 0,
    credentialType: credentialTypes[row.credential_type],
    defaultGroupIds: row.default_group_ids,
    enabled: row.enabled && !row.detached,
    keyState: Template_KeyState[state],
    claims: row.claims,
    provisionKey,
    expiresAt: expiresAt && timestampFromDate(expiresAt),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  });
}

/** Returns the key's part of a manifest: its hash and binding, which cannot be used to claim. */
const keyOnRecord = (tenantId: string, key: string) => ({
  keySha256: provisionKeyHash(key).toString('hex'),
  keyBinding: provisionKeyBinding(tenantId, key),
});

const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 128 });
const patternField = (pattern: string): string =>
  textField('hardware_id_pattern', pattern === '' ? '*' : pattern, { maximum: 256 });

function expiryField(seconds: number): void {
  if (seconds > 315_360_000) throw invalidArgument('expires_in_seconds must be at most 315360000 (ten years)');
}

/** Returns the name of the profile's custom resource. Throws NOT_FOUND for a profile that the tenant lacks. */
async function profileField(tx: Transaction, tenantId: string, profileId: string): Promise<string> {
  if (profileId === '') throw invalidArgument('profile_id is required');
  const profile = await findProfile(tx, tenantId, idField('profile_id', profileId));
  if (!profile || profile.detached) throw notFound('profile_id');
  return profile.resource_name;
}

/** Returns the ids of device groups without duplicates. Throws NOT_FOUND for one that the tenant lacks. */
async function groupsField(tx: Transaction, tenantId: string, groupIds: readonly string[]): Promise<string[]> {
  if (groupIds.length > 32) throw invalidArgument('default_group_ids must have at most 32 entries');
  const ids = [...new Set(groupIds.map((id) => id.toLowerCase()))];
  if (!ids.every(isId) || (await unknownGroups(tx, tenantId, ids)).length > 0) throw notFound('default_group_ids');
  return ids;
}

/** The handlers of templates. */
export function templateMethods(parts: {
  database: Database;
  paging: Paging;
  writer: ResourceWriter;
  applier: TemplateApplier;
  /** Seals a key for the operator. */
  sealKey: (namespace: string, name: string, key: string) => string;
}): TemplateMethods {
  const { database, paging, writer, applier, sealKey } = parts;

  const read = async (context: CallContext, templateId: string): Promise<TemplateRow> => {
    const { tenantId } = context;
    const id = idField('template', templateId);
    const row = await database.read(tenantId, (tx) => findTemplate(tx, tenantId, id));
    if (!row) throw notFound('template');
    return row;
  };

  const patch = async (
    context: CallContext,
    row: TemplateRow,
    spec: readonly SpecChange[],
    displayName?: string,
  ): Promise<TemplateRow> => {
    const renamed = displayName === undefined ? {} : { displayName };
    await writer.patch(context, { kind: 'ProvisioningTemplate', name: row.resource_name, spec, ...renamed });
    return read(context, row.template_id);
  };

  return {
    async createTemplate(request, context) {
      const { tenantId } = context;
      const displayName = nameField(request.name);
      const hardwareIdPattern = patternField(request.hardwareIdPattern);
      expiryField(request.expiresInSeconds);
      const credentialType = credentialTypes[credentialTypeField(request.credentialType)];
      const id = namedId(tenantId, 'template', resourceName(displayName));
      const { profileName, defaultGroupIds } = await database.tenant(tenantId, async (tx) => {
        const taken = (await findTemplate(tx, tenantId, id)) ?? (await findTemplateByName(tx, tenantId, displayName));
        if (taken && !taken.detached) throw nameTaken('template', displayName, taken.name);
        return {
          profileName: await profileField(tx, tenantId, request.profileId),
          defaultGroupIds: await groupsField(tx, tenantId, request.defaultGroupIds),
        };
      });
      const provisionKey = mintProvisionKey();
      const wanted = { ...request, hardwareIdPattern, defaultGroupIds, credentialType };
      const spec = {
        ...specOf('ProvisioningTemplate', wanted),
        profileRef: { name: profileName },
        ...keyOnRecord(tenantId, provisionKey),
      };
      const resource = { kind: 'ProvisioningTemplate', displayName, spec } as const;
      const row = await writer.create(context, resource, (tx, made) => findTemplate(tx, tenantId, made));
      return toTemplate(row!, provisionKey);
    },

    async getTemplate(request, context) {
      return toTemplate(await read(context, request.templateId));
    },

    async listTemplates(request, context) {
      const { tenantId } = context;
      const profileId = request.profileId === '' ? undefined : idField('profile_id', request.profileId);
      const scope = [tenantId, 'templates', profileId ?? ''];
      const page = paging.open<TemplateCursor>(request, scope);
      const cursor = (row: TemplateRow): TemplateCursor => [row.name, row.template_id];
      return paging.inTurn(tenantId, page, async () => {
        const found = await database.read(tenantId, async (tx) => {
          if (profileId !== undefined && !(await findProfile(tx, tenantId, profileId))) throw notFound('profile_id');
          return listTemplates(tx, tenantId, page.size + 1, { ...(profileId ? { profileId } : {}), after: page.after });
        });
        const { rows, nextPageToken } = paging.close(found, page, scope, cursor);
        return { templates: rows.map((row) => toTemplate(row)), nextPageToken };
      });
    },

    async updateTemplate(request, context) {
      const { tenantId } = context;
      const fields = updatedFields(request.updateMask, updatable);
      const row = await read(context, request.templateId);
      const mask = request.updateMask!;
      const wanted = changedRequest('ProvisioningTemplate', mask, request);
      const rename = fields.has('name') ? nameField(request.name ?? '') : row.name;
      const credentialType = request.credentialType ?? Credential_Type.api_key;
      if (fields.has('credential_type') && credentialType !== credentialTypes[row.credential_type]) {
        throw failedPrecondition('credential_type cannot be changed: create another template');
      }
      wanted.hardwareIdPattern = patternField(wanted.hardwareIdPattern);
      expiryField(wanted.expiresInSeconds);
      const references: SpecChange[] = [];
      await database.tenant(tenantId, async (tx) => {
        const other = rename === row.name ? undefined : await findTemplateByName(tx, tenantId, rename);
        if (other) throw nameTaken('template', rename, other.name);
        if (fields.has('profile_id')) {
          const profileRef = { name: await profileField(tx, tenantId, request.profileId ?? '') };
          references.push({ path: ['profileRef'], value: profileRef });
        }
        if (fields.has('default_group_ids')) {
          wanted.defaultGroupIds = await groupsField(tx, tenantId, request.defaultGroupIds);
        }
      });
      const changes = changeOf('ProvisioningTemplate', mask, wanted);
      const spec = [...changes.filter(({ path }) => path[0] !== 'credentialType'), ...references];
      if (spec.length === 0 && rename === row.name) return toTemplate(row);
      return toTemplate(await patch(context, row, spec, rename === row.name ? undefined : rename));
    },

    async deleteTemplate(request, context) {
      const { tenantId } = context;
      const row = await read(context, request.templateId);
      if (await writer.remove(context, 'ProvisioningTemplate', row.resource_name)) return {};
      const meta = create(ObjectMetaSchema, { tenantId, namespace: row.namespace, name: row.resource_name });
      const refusal = await applier.remove(meta, false);
      if (refusal) throw refusalError('ProvisioningTemplate', refusal);
      return {};
    },

    async disableTemplate(request, context) {
      const row = await read(context, request.templateId);
      return toTemplate(row.enabled ? await patch(context, row, [{ path: ['suspended'], value: true }]) : row);
    },

    async rotateTemplateKey(request, context) {
      const row = await read(context, request.templateId);
      const kind = 'ProvisioningTemplate';
      const { namespace, resource_name: name } = row;
      const provisionKey = mintProvisionKey();
      const key = keyOnRecord(context.tenantId, provisionKey);
      const { spec } = await writer.read(context, kind, name);
      if (spec.keySecretRef)
        throw failedPrecondition(`the key is kept in Secret ${spec.keySecretRef.name}: rotate it there`);
      if (spec.keySha256) {
        const changes = Object.entries(key).map(([field, value]) => ({ path: [field], value }));
        return toTemplate(await patch(context, row, changes), provisionKey);
      }
      // The operator keeps the key in a Secret that it alone may write; it gets the new key sealed.
      const annotations = { [sealedKeyAnnotation]: sealKey(namespace, name, provisionKey) };
      await writer.patch(context, { kind, name, spec: [], annotations, key });
      return toTemplate(await read(context, row.template_id), provisionKey);
    },
  };
}
