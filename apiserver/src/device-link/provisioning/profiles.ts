// ProfileService, and the reader of profiles for other services.
import { create } from '@bufbuild/protobuf';
import type { DeviceProfileSpec } from '@kellet/crds';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { refusalError } from '../../control/applier.ts';
import { resourceName } from '../../resources/resource-names.ts';
import type { ResourceWriter } from '../../resources/resource-writer.ts';
import type { ProfileFacts, TransactionalProfileReader } from '../../policies/profile-reader.ts';
import { anchoringModeName } from '../../policies/policies.ts';
import type { Database } from '../../platform/database/database.ts';
import { alreadyExists, failedPrecondition, notFound } from '../../platform/errors.ts';
import { idField, textField, updatedFields } from '../../platform/fields.ts';
import { isId, namedId } from '../../platform/ids.ts';
import type { Paging } from '../../platform/paging.ts';
import type { CallContext, Implementation } from '../../platform/rpc.ts';
import { profileUse, type ProfileApplier, type ProfileUsage } from './profile-applier.ts';
import { manifestOf } from './profile-manifest.ts';
import { checkProfile } from './profile-rules.ts';
import {
  findProfile,
  findProfileByName,
  listProfiles,
  toProfile,
  type ProfileCursor,
  type ProfileRow,
} from './profile-store.ts';

function toFacts(row: ProfileRow): ProfileFacts {
  const profile = toProfile(row);
  return {
    profileId: profile.profileId,
    name: profile.name,
    type: profile.type,
    defaultTags: profile.defaultTags,
    telemetrySchema: profile.telemetrySchema,
    anchoringMode: anchoringModeName(profile.anchoringPolicy?.mode),
    offlineAfterSeconds: profile.offlineAfterSeconds,
    otaPolicy: profile.otaPolicy,
  };
}

/** Returns a reader of profiles for the services whose devices inherit from them. */
export const createProfileReader = (database: Database): TransactionalProfileReader => ({
  async get(tenantId, profileId) {
    if (!isId(profileId)) return undefined;
    const row = await database.read(tenantId, (tx) => findProfile(tx, tenantId, profileId));
    return row && toFacts(row);
  },
  async getWithin(tx, tenantId, profileId, lock) {
    const row = await findProfile(tx, tenantId, profileId, lock);
    return row && toFacts(row);
  },
  async list(tenantId) {
    const rows = await database.read(tenantId, (tx) => listProfiles(tx, tenantId, 100_000));
    return rows.map(toFacts);
  },
});

/** The fields that an update mask may contain, with their names in the custom resource. */
const manifestFields = {
  type: 'type',
  default_tags: 'defaultTags',
  anchoring_policy: 'anchoringPolicy',
  telemetry_schema: 'telemetrySchema',
  ota_policy: 'otaPolicy',
  offline_after_seconds: 'offlineAfterSeconds',
} as const satisfies Record<string, keyof DeviceProfileSpec>;
const updatable = ['name', ...(Object.keys(manifestFields) as (keyof typeof manifestFields)[])] as const;

const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 128 });

/** The handlers of ProfileService. */
export function profileService(ground: {
  database: Database;
  paging: Paging;
  writer: ResourceWriter;
  applier: ProfileApplier;
  usage: ProfileUsage;
}): Implementation<typeof ProfileService> {
  const { database, paging, writer, applier, usage } = ground;

  const read = async (context: CallContext, profileId: string): Promise<ProfileRow> => {
    const { tenantId } = context;
    const id = idField('profile', profileId);
    const row = await database.read(tenantId, (tx) => findProfile(tx, tenantId, id));
    if (!row) throw notFound('profile');
    return row;
  };

  return {
    async createProfile(request, context) {
      const { tenantId } = context;
      const displayName = nameField(request.name);
      const { type, defaultTags, anchoringPolicy, telemetrySchema, otaPolicy, offlineAfterSeconds } = request;
      const fields = { type, defaultTags, anchoringPolicy, telemetrySchema, otaPolicy, offlineAfterSeconds };
      checkProfile(fields);
      const id = namedId(tenantId, 'profile', resourceName(displayName));
      const taken = await database.tenant(
        tenantId,
        async (tx) => (await findProfile(tx, tenantId, id)) ?? (await findProfileByName(tx, tenantId, displayName)),
      );
      if (taken && !taken.detached)
        throw alreadyExists(`a profile named ${JSON.stringify(displayName)} already exists`);
      const resource = { kind: 'DeviceProfile', displayName, spec: manifestOf(fields) } as const;
      const row = await writer.create(context, resource, (tx, made) => findProfile(tx, tenantId, made));
      return toProfile(row!);
    },

    async getProfile(request, context) {
      return toProfile(await read(context, request.profileId));
    },

    async listProfiles(request, context) {
      const { tenantId } = context;
      const scope = [tenantId, 'profiles'];
      const page = paging.open<ProfileCursor>(request, scope);
      const found = await database.read(tenantId, (tx) => listProfiles(tx, tenantId, page.size + 1, page.after));
      const { rows, nextPageToken } = paging.close(found, page, scope, (row): ProfileCursor => [
        row.name,
        row.profile_id,
      ]);
      return { profiles: rows.map(toProfile), nextPageToken };
    },

    async updateProfile(request, context) {
      const { tenantId } = context;
      const fields = updatedFields(request.updateMask, updatable);
      const row = await read(context, request.profileId);
      const wanted = toProfile(row);
      const rename = fields.has('name') ? nameField(request.name ?? '') : row.name;
      if (fields.has('type')) wanted.type = request.type ?? '';
      if (fields.has('default_tags')) wanted.defaultTags = request.defaultTags;
      if (fields.has('anchoring_policy')) wanted.anchoringPolicy = request.anchoringPolicy;
      if (fields.has('telemetry_schema')) wanted.telemetrySchema = request.telemetrySchema;
      if (fields.has('ota_policy')) wanted.otaPolicy = request.otaPolicy;
      if (fields.has('offline_after_seconds')) wanted.offlineAfterSeconds = request.offlineAfterSeconds ?? 0;
      checkProfile(wanted);
      const manifest = manifestOf(wanted);
      if (rename !== row.name) {
        const other = await database.tenant(tenantId, (tx) => findProfileByName(tx, tenantId, rename));
        if (other) throw alreadyExists(`a profile named ${JSON.stringify(rename)} already exists`);
      }
      const changed = Object.entries(manifestFields).filter(([field]) =>
        fields.has(field as keyof typeof manifestFields),
      );
      if (changed.length === 0 && rename === row.name) return toProfile(row);
      await writer.patch(context, {
        kind: 'DeviceProfile',
        name: row.resource_name,
        ...(rename === row.name ? {} : { displayName: rename }),
        spec: Object.fromEntries(changed.map(([, field]) => [field, manifest[field]])),
        leastSpec: { type: '' },
      });
      return toProfile(await read(context, row.profile_id));
    },

    async deleteProfile(request, context) {
      const { tenantId } = context;
      const row = await read(context, request.profileId);
      // Checked before the deletion of the custom resource, which cannot be undone.
      const use = await database.tenant(tenantId, (tx) => profileUse(tx, tenantId, row.profile_id, usage));
      if (use !== undefined) throw failedPrecondition(use);
      if (await writer.remove(context, 'DeviceProfile', row.resource_name)) return {};
      const meta = create(ObjectMetaSchema, { tenantId, namespace: row.namespace, name: row.resource_name });
      const refusal = await applier.remove(meta, false);
      if (refusal) throw refusalError('DeviceProfile', refusal);
      return {};
    },
  };
}
