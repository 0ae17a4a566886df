// ProfileService, and the reader of profiles for other services.
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { CreateProfileRequestSchema, type ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { refusalError } from '../../control/applier.ts';
import { changedRequest, changeOf, specOf } from '../../control/manifest-mapping.ts';
import type { Database } from '../../platform/database/database.ts';
import { failedPrecondition, notFound } from '../../platform/errors.ts';
import { isId, namedId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Paging } from '../../platform/requests/paging.ts';
import type { CallContext, Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { anchoringModeName } from '../../policies/policies.ts';
import type { ProfileFacts, TransactionalProfileReader } from '../../policies/profile-reader.ts';
import { nameTaken, resourceName } from '../../resources/resource-names.ts';
import type { ResourceWriter } from '../../resources/resource-writer.ts';
import { type ProfileApplier, type ProfileUsage, profileUse } from './profile-applier.ts';
import { checkProfile, checkSchemaSize } from './profile-rules.ts';
import {
  findProfile,
  findProfileByName,
  hasRevision,
  holdProfiles,
  listProfiles,
  type ProfileCursor,
  type ProfileRow,
  profilesWithNames,
  profilesWithTags,
  shownProfiles,
  toProfile,
} from './profile-store.ts';

function toFacts(row: ProfileRow & { revision: string }): ProfileFacts {
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
    revision: row.revision,
  };
}

/** Returns a reader of profiles for the services whose devices inherit from them. */
export const createProfileReader = (database: Database): TransactionalProfileReader => ({
  async get(tenantId, profileId, known) {
    if (!isId(profileId)) return undefined;
    const { revision } = known ?? {};
    const isKnown =
      revision !== undefined && (await database.read(tenantId, (tx) => hasRevision(tx, tenantId, profileId, revision)));
    if (isKnown) return known;
    const row = await database.read(tenantId, (tx) => findProfile(tx, tenantId, profileId));
    return row && toFacts(row);
  },
  async getWithin(tx, tenantId, profileId, lock) {
    const row = await findProfile(tx, tenantId, profileId, lock);
    return row && toFacts(row);
  },
  shown: shownProfiles,
  hold: holdProfiles,
  withDefaultTags: profilesWithTags,
  idsByName: profilesWithNames,
});

/** Profiles of a page that waits for no turn: the schema of one takes up to a megabyte. */
const smallPage = 2;

const updatable = CreateProfileRequestSchema.fields.map(({ name }) => name);

const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 128 });

/** The handlers of ProfileService. */
export function profileService(parts: {
  database: Database;
  paging: Paging;
  writer: ResourceWriter;
  applier: ProfileApplier;
  usage: ProfileUsage;
}): Implementation<typeof ProfileService> {
  const { database, paging, writer, applier, usage } = parts;

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
      checkProfile(request);
      checkSchemaSize(request, undefined);
      const id = namedId(tenantId, 'profile', resourceName(displayName));
      const taken = await database.tenant(
        tenantId,
        async (tx) => (await findProfile(tx, tenantId, id)) ?? (await findProfileByName(tx, tenantId, displayName)),
      );
      if (taken && !taken.detached) throw nameTaken('profile', displayName, taken.name);
      const resource = { kind: 'DeviceProfile', displayName, spec: specOf('DeviceProfile', request) } as const;
      const row = await writer.create(context, resource, (tx, made) => findProfile(tx, tenantId, made));
      return toProfile(row!);
    },

    async getProfile(request, context) {
      return toProfile(await read(context, request.profileId));
    },

    async listProfiles(request, context) {
      const { tenantId } = context;
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'profiles'],
        smallPage,
        cursorOf: (row: ProfileRow): ProfileCursor => [row.name, row.profile_id],
        read: (tx, after, room) => listProfiles(tx, tenantId, after, room),
        toItem: toProfile,
      });
      return { profiles: items, nextPageToken };
    },

    async updateProfile(request, context) {
      const { tenantId } = context;
      const fields = updatedFields(request.updateMask, updatable);
      const mask = request.updateMask!;
      const row = await read(context, request.profileId);
      const rename = fields.has('name') ? nameField(request.name ?? '') : row.name;
      const wanted = changedRequest('DeviceProfile', mask, request, toProfile(row));
      checkProfile(wanted);
      checkSchemaSize(wanted, toProfile(row));
      const spec = changeOf('DeviceProfile', mask, wanted);
      if (rename !== row.name) {
        const other = await database.tenant(tenantId, (tx) => findProfileByName(tx, tenantId, rename));
        if (other) throw nameTaken('profile', rename, other.name);
      }
      if (spec.length === 0 && rename === row.name) return toProfile(row);
      await writer.patch(context, {
        kind: 'DeviceProfile',
        name: row.resource_name,
        ...(rename === row.name ? {} : { displayName: rename }),
        spec,
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
