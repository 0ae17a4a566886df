// Keeps rollouts true to the fleet: what changes a device's membership changes the rollout in the same transaction, pauses it
// when that crosses the threshold, and wakes the operator. The cost does not grow with the fleet: the eligible devices are
// counted by judging the changed device before and after its change.
import type { FleetChange, FleetFacts, MembershipListener } from '../../../device-registry/membership.ts';
import { notifyChanged } from '../../../control/changes.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { profileRolloutsLock } from '../../../platform/database/advisory-locks.ts';
import { finishRolloutCommands } from '../../commands/commands.ts';
import {
  dropAssignments,
  listOverrideTypes,
  unassign,
  unassignFormerProfiles,
} from '../assignments/assignment-store.ts';
import { isCovered, rank } from './cohort.ts';
import {
  departure,
  isEligible,
  mayConcern,
  type Departure,
  type Membership,
  type Standing,
} from './membership-change.ts';
import { findPackage, type PackageRow } from '../packages/package-store.ts';
import type { Phase } from './progress.ts';
import { markLeft, removeRolloutDevices, type RolloutDeviceRow } from './rollout-device-store.ts';
import { countRemoval, holdForSignature, isRunning, pauseIfExceeded, type RolloutState } from './rollout-state.ts';
import { lockRollouts, saveRollout } from './rollout-store.ts';
import { enroll, placeOf, targetOf, type Departed } from './scheduling.ts';
import { isSigned, lacksSignature, type SignedRow } from '../packages/signature.ts';

/** A rollout that a change may concern, with the key under which the operator knows it. */
interface FoundRollout extends Membership {
  readonly namespace: string;
  readonly name: string;
}

interface StandingChange {
  readonly before?: Standing | undefined;
  readonly after?: Standing | undefined;
}

/** Why the row of a device that has left says `skipped`. */
const departureTexts: Record<Exclude<Departure, 'deleted'>, string> = {
  moved: 'left the rollout: the device has another profile',
  overridden: 'left the rollout: the device has an assignment of its own',
};

/** Applies changes of devices to the rollouts that have not completed. */
export class RolloutMembership implements MembershipListener {
  private readonly clock: Clock;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  async devicesChanged(tx: Transaction, tenantId: string, changes: readonly FleetChange[]): Promise<void> {
    const real = changes.filter(({ before, after }) => !before || !after || differs(before, after));
    if (real.length === 0) return;
    const existing = real.flatMap(({ before }) => before?.deviceId ?? []);
    const deleted = real.flatMap(({ before, after }) => (before && !after ? [before.deviceId] : []));
    const [found, overrides] = await Promise.all([
      findConcerned(tx, tenantId, real),
      existing.length > 0 ? listOverrideTypes(tx, tenantId, existing) : new Map<string, 'fw' | 'sw'>(),
    ]);
    const standing = (device: FleetFacts | undefined): Standing | undefined =>
      device && { ...device, override: overrides.get(device.deviceId) };
    const standings = real.map(({ before, after }) => ({ before: standing(before), after: standing(after) }));
    await this.apply(tx, tenantId, found, standings);
    // Below the locks of the rollouts: a rollback, which has its rollout locked, writes assignments too.
    if (deleted.length > 0) await dropAssignments(tx, tenantId, deleted);
    const moved = real.flatMap(({ before, after }) =>
      before && after && before.profileId !== after.profileId ? [after] : [],
    );
    if (moved.length > 0) await unassignFormerProfiles(tx, tenantId, moved);
  }

  /** Takes note that a device has got or lost an assignment of its own. Its row is locked by the transaction. */
  async overrideChanged(
    tx: Transaction,
    tenantId: string,
    device: FleetFacts,
    before: Standing['override'],
    after: Standing['override'],
  ): Promise<void> {
    if (before === after) return;
    const found = await findConcerned(tx, tenantId, [{ before: device, after: device }]);
    const change = { before: { ...device, override: before }, after: { ...device, override: after } };
    await this.apply(tx, tenantId, found, [change]);
  }

  async profileChanged(
    tx: Transaction,
    tenantId: string,
    profileId: string,
    policy: { readonly requireSignature: boolean },
  ): Promise<void> {
    await shareProfiles(tx, tenantId, [profileId]);
    const { rows } = await tx.query<SignedRow & { rollout_id: string }>(
      `SELECT r.rollout_id, p.signature, p.sha256, p.checksum_verified, t.trusted_signing_keys
       FROM ota_rollouts r JOIN ota_packages p USING (tenant_id, package_id) JOIN tenants t USING (tenant_id)
       WHERE r.tenant_id = $1 AND r.profile_id = $2 AND r.phase <> 'completed'`,
      [tenantId, profileId],
    );
    if (rows.length === 0) return;
    const packages = new Map(rows.map((row) => [row.rollout_id, row]));
    for (const state of await lockRollouts(tx, tenantId, [...packages.keys()])) {
      // Its device type may have changed: who is eligible is counted anew.
      state.schedulingDue = true;
      const held =
        lacksSignature(policy.requireSignature, packages.get(state.rolloutId)!) &&
        holdForSignature(state, new Date(this.clock.now()));
      await saveRollout(tx, state, this.clock, held ? 'paused' : undefined);
    }
  }

  /** Pauses active rollouts whose package is no longer signed by a trusted key although their profile requires it. */
  async signingKeysChanged(tx: Transaction, tenantId: string): Promise<void> {
    const { rows } = await tx.query<SignedRow & { rollout_id: string }>(
      `SELECT r.rollout_id, p.signature, p.sha256, p.checksum_verified, t.trusted_signing_keys
       FROM ota_rollouts r JOIN ota_packages p USING (tenant_id, package_id) JOIN tenants t USING (tenant_id)
         JOIN profiles f ON f.tenant_id = r.tenant_id AND f.profile_id = r.profile_id
       WHERE r.tenant_id = $1 AND r.phase = 'active'
         AND (f.document->'ota_policy'->>'require_signature')::boolean`,
      [tenantId],
    );
    const unsigned = rows.filter((row) => !isSigned(row)).map((row) => row.rollout_id);
    if (unsigned.length === 0) return;
    for (const state of await lockRollouts(tx, tenantId, unsigned)) {
      if (holdForSignature(state, new Date(this.clock.now()))) await saveRollout(tx, state, this.clock, 'paused');
    }
  }

  private async apply(
    tx: Transaction,
    tenantId: string,
    found: ReadonlyMap<string, FoundRollout>,
    changes: readonly StandingChange[],
  ): Promise<void> {
    const concerned = [...found].filter(([, rollout]) =>
      changes.some(({ before, after }) => mayConcern(rollout, before, after)),
    );
    if (concerned.length === 0) return;
    if (changes.every(({ before }) => !before)) {
      await addNewcomers(
        tx,
        tenantId,
        concerned,
        changes.flatMap(({ after }) => after ?? []),
      );
      return;
    }
    const rolloutIds = concerned.map(([id]) => id);
    const deviceIds = changes.map(({ before, after }) => (before ?? after)!.deviceId);
    // Who is a member is read once the rollouts are locked: until then they may be scheduling.
    const [states, members] = await Promise.all([
      lockRollouts(tx, tenantId, rolloutIds),
      readRows(tx, tenantId, rolloutIds, deviceIds),
    ]);
    for (const state of states) {
      const rollout = { ...found.get(state.rolloutId)!, phase: state.phase };
      await this.change(tx, state, rollout, changes, members.get(state.rolloutId) ?? new Map());
    }
  }

  private async change(
    tx: Transaction,
    state: RolloutState,
    rollout: Membership,
    changes: readonly StandingChange[],
    members: ReadonlyMap<string, RolloutDeviceRow>,
  ): Promise<void> {
    const leaving: Leaving[] = [];
    const returning: string[] = [];
    let changed = false;
    for (const { before, after } of changes) {
      const known = members.get((before ?? after)!.deviceId);
      const row = known?.has_left ? undefined : known;
      const why = row && departure(rollout, before, after);
      if (row && why) leaving.push({ row, why });
      const was = isEligible(rollout, before, row !== undefined);
      const is = isEligible(rollout, after, row !== undefined && !why);
      if (was !== is) {
        state.eligible = Math.max(0, state.eligible + (is ? 1 : -1));
        changed = true;
        const { deviceId } = (before ?? after)!;
        // A device that was scheduled before it got an assignment of its own goes on at once without it.
        if (is && known && before?.override === rollout.packageType && state.phase === 'active')
          returning.push(deviceId);
        // It comes or goes before the last that is covered: another one may be covered now.
        else if (isCovered(state.coveredRank, rollout.target.packageId, deviceId)) state.schedulingDue = true;
      }
    }
    if (!changed && leaving.length === 0) return;
    const now = new Date(this.clock.now());
    countOut(state, leaving);
    const package_ = returning.length > 0 ? await findPackage(tx, state.tenantId, state.packageId) : undefined;
    if (package_) await enroll(tx, state, returning, package_, now);
    const paused = pauseIfExceeded(state, now);
    await Promise.all([writeOut(tx, state, leaving), saveRollout(tx, state, this.clock, paused)]);
  }
}

const differs = (before: FleetFacts, after: FleetFacts): boolean =>
  before.profileId !== after.profileId ||
  before.hardwareId !== after.hardwareId ||
  before.firmwareVersion !== after.firmwareVersion ||
  before.softwareVersion !== after.softwareVersion;

interface Leaving {
  readonly row: RolloutDeviceRow;
  readonly why: Departure;
}

/** Takes members out of the counts of a locked rollout. */
function countOut(state: RolloutState, leaving: readonly Leaving[]): void {
  for (const { row } of leaving) {
    countRemoval(state, row.state, placeOf(state, row), row.rolling_back);
  }
}

/** Takes members out of a locked rollout: their rows, commands and assignments. */
async function writeOut(tx: Transaction, state: RolloutState, leaving: readonly Leaving[]): Promise<void> {
  if (leaving.length === 0) return;
  const { tenantId, rolloutId } = state;
  const idsOf = (...reasons: Departure[]) =>
    leaving.flatMap(({ row, why }) => (reasons.includes(why) ? [row.device_id] : []));
  const running = leaving.flatMap(({ row }) => (isRunning(row.state) ? [row.correlation_id] : []));
  await Promise.all([
    removeRolloutDevices(tx, tenantId, rolloutId, idsOf('deleted')),
    markLeft(tx, tenantId, rolloutId, idsOf('moved'), departureTexts.moved),
    markLeft(tx, tenantId, rolloutId, idsOf('overridden'), departureTexts.overridden),
    running.length > 0 && finishRolloutCommands(tx, tenantId, running, 'cancelled'),
    unassign(tx, tenantId, idsOf('deleted', 'moved', 'overridden'), rolloutId),
  ]);
}

/**
 * Takes out members that a look over the fleet found to have departed. Whoever changes a device does so at once; this is for
 * what a process of an earlier release has changed.
 */
export async function takeOutDeparted(tx: Transaction, state: RolloutState, departed: Departed): Promise<void> {
  if (departed.size === 0) return;
  const { rows } = await tx.query<RolloutDeviceRow & { lives: boolean }>(
    `SELECT m.*, EXISTS (SELECT FROM devices d
         WHERE d.tenant_id = m.tenant_id AND d.device_id = m.device_id AND d.deleted_at IS NULL) AS lives
     FROM ota_rollout_devices m WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = ANY($3::uuid[])`,
    [state.tenantId, state.rolloutId, [...departed.keys()]],
  );
  const why = (row: { device_id: string; lives: boolean }): Departure => {
    if (departed.get(row.device_id) === 'overridden') return 'overridden';
    return row.lives ? 'moved' : 'deleted';
  };
  const leaving = rows.map((row) => ({ row, why: why(row) }));
  countOut(state, leaving);
  await writeOut(tx, state, leaving);
}

type ConcernedRow = Pick<PackageRow, 'package_id' | 'type' | 'version' | 'compatibility'> & {
  rollout_id: string;
  namespace: string;
  name: string;
  profile_id: string;
  profile_type: string;
  phase: Phase;
};

/**
 * The rollouts that have not completed and that the changed devices are in or may come into. Asks for everything before it
 * awaits anything, so that the question travels with what the caller asks at the same time.
 */
async function findConcerned(
  tx: Transaction,
  tenantId: string,
  changes: readonly FleetChange[],
): Promise<Map<string, FoundRollout>> {
  const profileIds = [
    ...new Set(changes.flatMap(({ before, after }) => [before?.profileId ?? [], after?.profileId ?? []].flat())),
  ].sort();
  const existing = changes.flatMap(({ before }) => before?.deviceId ?? []);
  if (profileIds.length === 0 && existing.length === 0) return new Map();
  const columns = `r.rollout_id, r.namespace, r.name, r.profile_id, r.phase, p.package_id, p.type, p.version, p.compatibility,
    coalesce(f.document->>'type', '') AS profile_type`;
  const joins = `JOIN ota_packages p ON p.tenant_id = r.tenant_id AND p.package_id = r.package_id
    LEFT JOIN profiles f ON f.tenant_id = r.tenant_id AND f.profile_id = r.profile_id`;
  // First, so that the questions see what a creation that was under way has come to.
  const shared = shareProfiles(tx, tenantId, profileIds);
  const questions = [
    tx.query<ConcernedRow>(
      `SELECT ${columns} FROM ota_rollouts r ${joins}
       WHERE r.tenant_id = $1 AND r.profile_id = ANY($2::uuid[]) AND r.phase <> 'completed'`,
      [tenantId, profileIds],
    ),
  ];
  if (existing.length > 0) {
    // A device that is on its way back stays a member with another profile too.
    questions.push(
      tx.query<ConcernedRow>(
        `SELECT ${columns} FROM ota_rollout_devices m
         JOIN ota_rollouts r ON r.tenant_id = m.tenant_id AND r.rollout_id = m.rollout_id ${joins}
         WHERE m.tenant_id = $1 AND m.device_id = ANY($2::uuid[]) AND NOT m.has_left AND r.phase <> 'completed'`,
        [tenantId, existing],
      ),
    );
  }
  const [, ...answers] = await Promise.all([shared, ...questions]);
  return new Map(
    answers
      .flatMap(({ rows }) => rows)
      .map((row) => [
        row.rollout_id,
        {
          profileId: row.profile_id,
          profileType: row.profile_type,
          packageType: row.type,
          target: targetOf(row),
          phase: row.phase,
          namespace: row.namespace,
          name: row.name,
        },
      ]),
  );
}

/** Keeps rollouts of these profiles from being created until the transaction ends. The ids are sorted. */
async function shareProfiles(tx: Transaction, tenantId: string, profileIds: readonly string[]): Promise<void> {
  if (profileIds.length === 0) return;
  await tx.query(`SELECT pg_advisory_xact_lock_shared(hashtextextended(key, 0)) FROM unnest($1::text[]) AS k (key)`, [
    profileIds.map((profileId) => profileRolloutsLock(tenantId, profileId)),
  ]);
}

/**
 * Counts new devices among the eligible ones of rollouts that they are eligible for: no member of any, they change nothing else.
 * In one message, because claims of a profile wait here for one another.
 */
async function addNewcomers(
  tx: Transaction,
  tenantId: string,
  rollouts: readonly (readonly [string, FoundRollout])[],
  devices: readonly Standing[],
): Promise<void> {
  const additions = rollouts.map(([rolloutId, rollout]) => {
    const eligible = devices.filter((device) => isEligible(rollout, device, false));
    const ranks = eligible.map(({ deviceId }) => rank(rollout.target.packageId, deviceId));
    return { rolloutId, count: eligible.length, first: ranks.sort((left, right) => Buffer.compare(left, right))[0] };
  });
  await Promise.all([
    tx.query(
      `WITH held AS (
         SELECT rollout_id FROM ota_rollouts
         WHERE tenant_id = $1 AND rollout_id = ANY($2::uuid[]) AND phase <> 'completed' ORDER BY rollout_id FOR UPDATE
       )
       UPDATE ota_rollouts r SET eligible = r.eligible + a.count,
         scheduling_due = r.scheduling_due OR coalesce(a.first <= r.covered_rank, false),
         revision = r.revision + 1, updated_at = now()
       FROM unnest($2::uuid[], $3::int4[], $4::bytea[]) AS a (rollout_id, count, first) JOIN held USING (rollout_id)
       WHERE r.tenant_id = $1 AND r.rollout_id = a.rollout_id`,
      [
        tenantId,
        additions.map(({ rolloutId }) => rolloutId),
        additions.map(({ count }) => count),
        additions.map(({ first }) => first),
      ],
    ),
    ...rollouts.map(([, { namespace, name }]) => notifyChanged(tx, 'OtaRollout', tenantId, namespace, name)),
  ]);
}

/** The rows of these devices, also of those that have left, by rollout and device. */
async function readRows(
  tx: Transaction,
  tenantId: string,
  rolloutIds: readonly string[],
  deviceIds: readonly string[],
): Promise<Map<string, Map<string, RolloutDeviceRow>>> {
  const { rows } = await tx.query<RolloutDeviceRow & { rollout_id: string }>(
    `SELECT * FROM ota_rollout_devices
     WHERE tenant_id = $1 AND rollout_id = ANY($2::uuid[]) AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutIds, deviceIds],
  );
  const found = Map.groupBy(rows, (row) => row.rollout_id);
  return new Map([...found].map(([id, ofOne]) => [id, new Map(ofOne.map((row) => [row.device_id, row]))]));
}
