// SQL of profiles.
import { create, fromJson, type JsonObject, toJson } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { CreateProfileRequestSchema, type Profile, ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { profileChannel } from '../../platform/database/channels.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { isId } from '../../platform/ids.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import type { ShownProfile, Tag } from '../../policies/profile-reader.ts';
import type { ProfileFields } from './profile-rules.ts';

/** A row of the table profiles. */
export interface ProfileRow {
  profile_id: string;
  namespace: string;
  resource_name: string;
  name: string;
  document: JsonObject;
  detached: boolean;
  created_at: Date;
  updated_at: Date;
}

/** Position after a page of profiles: name and id. */
export type ProfileCursor = [name: string, id: string];

const columns = `profile_id, namespace, resource_name, name, document, detached_at IS NOT NULL AS detached, created_at,
  updated_at`;

/** Converts a row to the public message. */
export function toProfile(row: ProfileRow): Profile {
  const profile = fromJson(ProfileSchema, row.document, { ignoreUnknownFields: true });
  profile.profileId = row.profile_id;
  profile.name = row.name;
  profile.createdAt = timestampFromDate(row.created_at);
  profile.updatedAt = timestampFromDate(row.updated_at);
  return profile;
}

/** Returns the content of the column `document`. */
function documentOf(fields: ProfileFields): string {
  const profile = create(CreateProfileRequestSchema, { ...fields, name: '' });
  return JSON.stringify(toJson(CreateProfileRequestSchema, profile, { useProtoFieldName: true }));
}

/** Writes the row of a resource; directories evict the profile if anything changed. Reports whether it has. */
export async function writeProfile(
  tx: Transaction,
  profileId: string,
  meta: ObjectMeta,
  fields: ProfileFields,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `INSERT INTO profiles AS held (tenant_id, profile_id, namespace, resource_name, name, document)
     VALUES ($1, $2, $3, $4, $5, $6)
     ON CONFLICT (tenant_id, profile_id) DO UPDATE
       SET namespace = excluded.namespace, name = excluded.name, document = excluded.document,
           detached_at = NULL,
           updated_at = CASE WHEN (held.name, held.document) IS DISTINCT FROM (excluded.name, excluded.document)
                             THEN now() ELSE held.updated_at END
       WHERE (held.namespace, held.name, held.document, held.detached_at)
             IS DISTINCT FROM (excluded.namespace, excluded.name, excluded.document, NULL)`,
    [meta.tenantId, profileId, meta.namespace, meta.name, meta.displayName || meta.name, documentOf(fields)],
  );
  if (rowCount) await notifyProfileChanged(tx, meta.tenantId, profileId);
  return (rowCount ?? 0) > 0;
}

async function notifyProfileChanged(tx: Transaction, tenantId: string, profileId: string): Promise<void> {
  await tx.query(`SELECT pg_notify('${profileChannel}', $1)`, [`${tenantId}/${profileId}`]);
}

/**
 * Returns the profile with this id and its revision, which every change of the row changes, or undefined. `lock` prevents its
 * deletion until the transaction ends.
 */
export async function findProfile(
  tx: Transaction,
  tenantId: string,
  profileId: string,
  lock: '' | 'FOR KEY SHARE' | 'FOR UPDATE' = '',
): Promise<(ProfileRow & { revision: string }) | undefined> {
  const { rows } = await tx.query<ProfileRow & { revision: string }>(
    `SELECT ${columns}, xmin::text AS revision FROM profiles WHERE tenant_id = $1 AND profile_id = $2 ${lock}`,
    [tenantId, profileId],
  );
  return rows[0];
}

/** Reports whether the profile has this revision. */
export async function hasRevision(
  tx: Transaction,
  tenantId: string,
  profileId: string,
  revision: string,
): Promise<boolean> {
  const { rows } = await tx.query('SELECT FROM profiles WHERE tenant_id = $1 AND profile_id = $2 AND xmin::text = $3', [
    tenantId,
    profileId,
    revision,
  ]);
  return rows.length > 0;
}

/** Returns a profile with this name, or undefined. */
export async function findProfileByName(
  tx: Transaction,
  tenantId: string,
  name: string,
): Promise<ProfileRow | undefined> {
  const { rows } = await tx.query<ProfileRow>(
    `SELECT ${columns} FROM profiles WHERE tenant_id = $1 AND name COLLATE "C" = $2 LIMIT 1`,
    [tenantId, name],
  );
  return rows[0];
}

/** Returns what the messages of devices show of profiles, by their ids. */
export async function shownProfiles(
  tx: Transaction,
  tenantId: string,
  profileIds: readonly string[],
): Promise<Map<string, ShownProfile>> {
  if (profileIds.length === 0) return new Map();
  const { rows } = await tx.query<{ profile_id: string; name: string; tags: Record<string, string> | null }>(
    `SELECT profile_id, name, document->'default_tags' AS tags FROM profiles
     WHERE tenant_id = $1 AND profile_id = ANY($2::uuid[])`,
    [tenantId, profileIds],
  );
  return new Map(rows.map(({ profile_id: id, name, tags }) => [id, { profileId: id, name, defaultTags: tags ?? {} }]));
}

/** Locks those of the profiles that exist against deletion until the transaction ends, and returns their ids. */
export async function holdProfiles(
  tx: Transaction,
  tenantId: string,
  profileIds: readonly string[],
): Promise<Set<string>> {
  const ids = profileIds.filter(isId);
  if (ids.length === 0) return new Set();
  const { rows } = await tx.query<{ profile_id: string }>(
    `SELECT profile_id FROM profiles WHERE tenant_id = $1 AND profile_id = ANY($2::uuid[])
     ORDER BY profile_id FOR KEY SHARE`,
    [tenantId, ids],
  );
  return new Set(rows.map((row) => row.profile_id));
}

/** Returns for each tag the ids of the profiles, or of some of them, that have it among their default tags. */
export async function profilesWithTags(
  tx: Transaction,
  tenantId: string,
  tags: readonly Tag[],
  among?: readonly string[],
): Promise<string[][]> {
  if (tags.length === 0) return [];
  const textOf = ({ key, value }: Tag) => JSON.stringify([key, value]);
  // Many groups may ask for the same tag.
  const distinct = new Map(tags.map((tag) => [textOf(tag), { tag, profileIds: [] as string[] }]));
  const wanted = [...distinct.values()];
  // Each document is read once, and none gets into the process: a schema takes up to a megabyte.
  const { rows } = await tx.query<{ place: number; profile_id: string }>(
    `WITH inherited AS MATERIALIZED (
       SELECT profile_id, document->'default_tags' AS tags FROM profiles
       WHERE tenant_id = $1 ${among ? 'AND profile_id = ANY($4::uuid[])' : ''}
     )
     SELECT tag.place::int4 - 1 AS place, profile_id
     FROM inherited JOIN unnest($2::text[], $3::text[]) WITH ORDINALITY AS tag (key, value, place)
       ON inherited.tags->>tag.key = tag.value`,
    [tenantId, wanted.map(({ tag }) => tag.key), wanted.map(({ tag }) => tag.value), ...(among ? [among] : [])],
  );
  for (const { place, profile_id } of rows) wanted[place]!.profileIds.push(profile_id);
  return tags.map((tag) => distinct.get(textOf(tag))!.profileIds);
}

/** Returns the ids of the profiles with one of the names, by name. */
export async function profilesWithNames(
  tx: Transaction,
  tenantId: string,
  names: readonly string[],
): Promise<Map<string, string>> {
  const { rows } = await tx.query<{ name: string; profile_id: string }>(
    `SELECT name, profile_id FROM profiles
     WHERE tenant_id = $1 AND name COLLATE "C" = ANY($2::text[] COLLATE "C") ORDER BY name COLLATE "C", profile_id`,
    [tenantId, names],
  );
  return new Map(rows.map(({ name, profile_id }) => [name, profile_id]));
}

/** Returns profiles ordered by name, after the cursor. */
export async function listProfiles(
  tx: Transaction,
  tenantId: string,
  after: ProfileCursor | undefined,
  room: Room,
): Promise<(ProfileRow & SizedRow)[]> {
  const { rows } = await tx.query<ProfileRow & SizedRow>(
    sizedRows(
      `SELECT ${columns}, ${jsonBytes('document')} AS row_bytes FROM profiles
       WHERE tenant_id = $1 AND ($2::text IS NULL OR (name COLLATE "C", profile_id) > ($2, $3::uuid))`,
      'name COLLATE "C", profile_id',
      4,
    ),
    [tenantId, after?.[0] ?? null, after?.[1] ?? null, room.limit, room.bytes],
  );
  return rows;
}

/** Returns the custom resources of profiles, without those that no longer exist. */
export async function profileResources(
  tx: Transaction,
  profiles: readonly { readonly tenant_id: string; readonly profile_id: string }[],
): Promise<Pick<ProfileRow & { tenant_id: string }, 'tenant_id' | 'namespace' | 'resource_name'>[]> {
  if (profiles.length === 0) return [];
  const { rows } = await tx.query<{ tenant_id: string; namespace: string; resource_name: string }>(
    `SELECT tenant_id, namespace, resource_name
     FROM profiles JOIN unnest($1::text[], $2::uuid[]) AS wanted (tenant_id, profile_id) USING (tenant_id, profile_id)
     WHERE detached_at IS NULL`,
    [profiles.map(({ tenant_id }) => tenant_id), profiles.map(({ profile_id }) => profile_id)],
  );
  return rows;
}

/** Deletes an unused profile. */
export async function deleteProfile(tx: Transaction, tenantId: string, profileId: string): Promise<void> {
  await tx.query('DELETE FROM profiles WHERE tenant_id = $1 AND profile_id = $2', [tenantId, profileId]);
  await notifyProfileChanged(tx, tenantId, profileId);
}

/** Marks a profile whose namespace was deleted; its devices keep using it. */
export async function detachProfile(tx: Transaction, tenantId: string, profileId: string): Promise<void> {
  await tx.query(
    'UPDATE profiles SET detached_at = now() WHERE tenant_id = $1 AND profile_id = $2 AND detached_at IS NULL',
    [tenantId, profileId],
  );
}
