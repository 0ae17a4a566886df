// Sums up which devices of a fleet a package is for, before there is a rollout of it. PostgreSQL reads the fleet; of it come
// only its versions, and others are served while these are judged.
import { Pauses } from '../../../../platform/concurrency/pauses.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { readCursor } from '../../../../platform/statements/cursor.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import { type Exclusion, exclusion, isForHardware, rankPrefix, targetOf } from '../decisions/cohort.ts';

/** The devices of a profile by what a package may do with them. */
export interface FleetSummary {
  readonly devices: number;
  readonly eligible: number;
  readonly excludedCounts: Partial<Record<Exclusion, number>>;
  /** Hashes of the versions that devices report and that exclude them: each device may have a version of its own, of a kilobyte. */
  readonly excludedVersions: readonly bigint[];
}

/** Devices with the same version and match. */
interface Group {
  /** The hash of the version. */
  readonly hash: bigint;
  readonly matches: boolean;
  readonly devices: number;
}

/** Groups that are read at once, of which each may take a kilobyte. */
const groupsPerPiece = 2000;

interface Profile {
  readonly profileId: string;
  readonly type: string;
}

type FleetGroup = Group & { readonly version: string };

/** Returns the LIKE pattern of a pattern of hardware ids. */
export const toLike = (pattern: string): string =>
  pattern === ''
    ? '%'
    : pattern
        .replaceAll(/[\\%_]/g, (character) => `\\${character}`)
        .replaceAll('*', '%')
        .replaceAll('?', '_');

const columnOf = (package_: PackageRow): string => (package_.type === 'fw' ? 'firmware_version' : 'software_version');

/** SQL: the hash of a version. */
const hashOf = (version: string): string => `hashtextextended(${version}, 0)`;

/** The device's own assignment, looked up device by device: a join would be planned by statistics. */
const ownAssignment = ({ type }: PackageRow): string => `LEFT JOIN LATERAL (
  SELECT true AS is_overridden FROM ota_assignments a JOIN ota_packages p USING (tenant_id, package_id)
  WHERE a.tenant_id = $1 AND a.device_id = d.device_id AND a.slot = 'override' AND p.type = '${type}' LIMIT 1) AS own ON true`;

/** Runs queries that read a whole fleet along the table, not in the order of an index, whatever the planner knows about it. */
async function alongTheTable<T>(tx: Transaction, work: () => Promise<T>): Promise<T> {
  const set = (value: string) =>
    tx.query(`SELECT set_config('enable_indexscan', $1, true), set_config('enable_indexonlyscan', $1, true)`, [value]);
  const [, result] = await Promise.all([set('off'), work(), set('on')]);
  return result;
}

/** Counts the devices of a profile that a package is for, and the others by reason. */
export async function summarizeFleet(
  tx: Transaction,
  tenantId: string,
  profile: Profile,
  package_: PackageRow,
): Promise<FleetSummary> {
  const target = targetOf(package_);
  const column = columnOf(package_);
  const like = toLike(target.hardwareIdPattern);
  const own = await tx.query<Group & Record<string, unknown>>(
    `SELECT ${hashOf('d.version')} AS hash, d.matches, count(*)::int4 AS devices
     FROM ota_assignments a JOIN ota_packages p USING (tenant_id, package_id)
     CROSS JOIN LATERAL (
       SELECT ${column} AS version, hardware_id LIKE $3 AS matches FROM devices
       WHERE tenant_id = $1 AND device_id = a.device_id AND profile_id = $2 AND deleted_at IS NULL LIMIT 1) AS d
     WHERE a.tenant_id = $1 AND a.slot = 'override' AND p.type = $4 GROUP BY 1, 2`,
    [tenantId, profile.profileId, like, package_.type],
  );
  const keyOf = ({ hash, matches }: Group) => `${matches} ${hash}`;
  const ownDevices = new Map(own.rows.map((group) => [keyOf(group), group.devices]));
  const fleet = readCursor<FleetGroup>(
    tx,
    {
      name: 'versions_of_fleet',
      text: `SELECT version, ${hashOf('version')} AS hash, matches, devices FROM (
         SELECT ${column} AS version, hardware_id LIKE $3 AS matches, count(*)::int4 AS devices FROM devices
         WHERE tenant_id = $1 AND profile_id = $2 AND deleted_at IS NULL GROUP BY 1, 2) AS g`,
      values: [tenantId, profile.profileId, like],
    },
    groupsPerPiece,
  );
  const excludedCounts: Partial<Record<Exclusion, number>> = {};
  const excludedVersions = new Set<bigint>();
  let devices = 0;
  let eligible = 0;
  const add = ({ version, hash, matches }: FleetGroup, isOverridden: boolean, added: number): void => {
    if (added === 0) return;
    devices += added;
    const reason = exclusion({ version, matches, overridden: isOverridden, member: false }, target, profile.type);
    if (!reason) eligible += added;
    else excludedCounts[reason] = (excludedCounts[reason] ?? 0) + added;
    const byVersion = exclusion({ version, matches: true, overridden: false, member: false }, target, profile.type);
    if (byVersion) excludedVersions.add(hash);
  };
  const pauses = new Pauses();
  // The cursor is planned when its first piece is asked for.
  let piece = await alongTheTable(tx, () => fleet.next());
  for (; !piece.done; piece = await fleet.next()) {
    for (const group of piece.value) {
      await pauses.next();
      const overridden = ownDevices.get(keyOf(group)) ?? 0;
      add(group, true, overridden);
      add(group, false, group.devices - overridden);
    }
  }
  return { devices, eligible, excludedCounts, excludedVersions: [...excludedVersions] };
}

/**
 * Returns the ids of eligible devices: for each of the places in the package's order (1-based, ascending, unique) the device at
 * that place and the devices after it, up to `limit` and the next place.
 */
export async function eligibleFrom(
  tx: Transaction,
  tenantId: string,
  profile: Profile,
  package_: PackageRow,
  { excludedVersions, excludedCounts }: FleetSummary,
  { places, limit }: { places: readonly number[]; limit: number },
): Promise<string[][]> {
  const target = targetOf(package_);
  const withoutOwn = excludedCounts.device_override === undefined ? '' : ownAssignment(package_);
  const { rows } = await alongTheTable(tx, () =>
    tx.query<{ device_id: string; index: number }>(
      `SELECT device_id, width_bucket(place, $6::int4[]) AS index FROM (
         SELECT d.device_id, row_number() OVER (ORDER BY sha256($3 || convert_to(d.device_id::text, 'UTF8')))::int4 AS place
         FROM devices d ${withoutOwn}
         WHERE d.tenant_id = $1 AND d.profile_id = $2 AND d.deleted_at IS NULL
           AND d.hardware_id LIKE $4 AND ${hashOf(`d.${columnOf(package_)}`)} <> ALL($5::int8[])
           ${withoutOwn && 'AND own.is_overridden IS NULL'}
       ) AS eligible
       WHERE place < ($6::int4[])[width_bucket(place, $6::int4[])] + $7::int4 ORDER BY place`,
      [
        ...[tenantId, profile.profileId, rankPrefix(target.packageId), toLike(target.hardwareIdPattern)],
        ...[excludedVersions, places, limit],
      ],
    ),
  );
  const found: string[][] = places.map(() => []);
  for (const row of rows) found[row.index - 1]!.push(row.device_id);
  return found;
}

/** Returns the first devices that are not eligible, in order of their ids, with the reason. */
export async function listExcluded(
  tx: Transaction,
  tenantId: string,
  profile: Profile,
  package_: PackageRow,
  { excludedVersions }: FleetSummary,
  limit: number,
): Promise<{ deviceId: string; reason: Exclusion }[]> {
  const target = targetOf(package_);
  const { rows } = await tx.query<{ device_id: string; hardware_id: string; version: string; is_overridden: boolean }>(
    `SELECT d.device_id, d.hardware_id, d.${columnOf(package_)} AS version, own.is_overridden IS NOT NULL AS is_overridden
     FROM devices d ${ownAssignment(package_)}
     WHERE d.tenant_id = $1 AND d.profile_id = $2 AND d.deleted_at IS NULL
       AND (d.hardware_id NOT LIKE $3 OR ${hashOf(`d.${columnOf(package_)}`)} = ANY($4::int8[]) OR own.is_overridden)
     ORDER BY d.device_id LIMIT $5`,
    [tenantId, profile.profileId, toLike(target.hardwareIdPattern), excludedVersions, limit],
  );
  return rows.flatMap(({ device_id: deviceId, hardware_id: hardwareId, version, is_overridden: overridden }) => {
    const candidate = { matches: isForHardware(target, hardwareId), version, overridden, member: false };
    const reason = exclusion(candidate, target, profile.type);
    return reason ? [{ deviceId, reason }] : [];
  });
}
