// Applies DeviceProfile resources.
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { DeviceProfileSpec } from '@kellet/crds';
import type { DeviceProfileObservedSchema, ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { CreateProfileRequest } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { takeUp } from '../../control/applied-versions.ts';
import { type Applied, type Applier, type LastStep, type Refusal, RefusalError } from '../../control/applier.ts';
import { requestOf } from '../../control/manifest-mapping.ts';
import { forgetProfileSize } from '../../device-registry/devices/devices.ts';
import type { MembershipListener } from '../../device-registry/devices/fleet-changes.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { KelletError } from '../../platform/errors.ts';
import { namedId } from '../../platform/ids.ts';
import { checkProfile, checkSchemaSize } from './profile-rules.ts';
import { deleteProfile, detachProfile, findProfile, toProfile, writeProfile } from './profile-store.ts';
import { countTemplatesOfProfile } from './template-store.ts';

type Observed = MessageInitShape<typeof DeviceProfileObservedSchema>;

/** Counts uses of a profile outside provisioning: devices and rollouts that are not completed. */
export type ProfileUsage = (
  tx: Transaction,
  tenantId: string,
  profileId: string,
) => Promise<{ devices: number; rollouts: number; rules: number }>;

/** Describes what uses a profile, which therefore must stay; undefined if it is unused. */
export async function profileUse(
  tx: Transaction,
  tenantId: string,
  profileId: string,
  usage: ProfileUsage,
): Promise<string | undefined> {
  const { devices, rollouts, rules } = await usage(tx, tenantId, profileId);
  const templates = await countTemplatesOfProfile(tx, tenantId, profileId);
  const uses = [
    devices > 0 ? `${devices} ${devices === 1 ? 'device' : 'devices'}` : '',
    templates > 0 ? `${templates} provisioning ${templates === 1 ? 'template' : 'templates'}` : '',
    rollouts > 0 ? `${rollouts} ${rollouts === 1 ? 'rollout' : 'rollouts'}` : '',
    rules > 0 ? `${rules} ${rules === 1 ? 'rule' : 'rules'}` : '',
  ].filter((use) => use !== '');
  return uses.length > 0 ? `the profile is used by ${uses.join(', ')}` : undefined;
}

/** Applies DeviceProfile resources. */
export class ProfileApplier implements Applier<DeviceProfileSpec, Observed> {
  private readonly database: Database;
  private readonly usage: ProfileUsage;
  private readonly membership: MembershipListener;

  constructor(database: Database, usage: ProfileUsage, membership: MembershipListener) {
    this.database = database;
    this.usage = usage;
    this.membership = membership;
  }

  apply(meta: ObjectMeta, spec: DeviceProfileSpec, last?: LastStep): Promise<Applied<Observed>> {
    const profile = readSpec(spec);
    const id = namedId(meta.tenantId, 'profile', meta.name);
    return this.database.tenant(meta.tenantId, async (tx) => {
      await takeUp(tx, 'DeviceProfile', meta);
      const before = await findProfile(tx, meta.tenantId, id);
      valid(() => checkSchemaSize(profile, before && toProfile(before)));
      if (await writeProfile(tx, id, meta, profile)) {
        const requireSignature = profile.otaPolicy?.requireSignature ?? false;
        await this.membership.profileChanged(tx, meta.tenantId, id, { requireSignature });
      }
      const { devices } = await this.usage(tx, meta.tenantId, id);
      await last?.(tx);
      return { id, observed: { devices } };
    });
  }

  remove(meta: ObjectMeta, detach: boolean): Promise<Refusal | undefined> {
    const { tenantId } = meta;
    const id = namedId(tenantId, 'profile', meta.name);
    return this.database.tenant(tenantId, async (tx) => {
      if (!(await findProfile(tx, tenantId, id, 'FOR UPDATE'))) return undefined;
      const use = await profileUse(tx, tenantId, id, this.usage);
      if (use === undefined) {
        await deleteProfile(tx, tenantId, id);
        await forgetProfileSize(tx, tenantId, id);
      } else if (detach) await detachProfile(tx, tenantId, id);
      else return { reason: 'InUse' as const, message: use };
      return undefined;
    });
  }
}

/** Returns the checked profile of a manifest. Throws the refusal InvalidSpec. */
function readSpec(spec: DeviceProfileSpec): CreateProfileRequest {
  return valid(() => {
    const profile = requestOf('DeviceProfile', spec);
    checkProfile(profile);
    return profile;
  });
}

/** Returns what a check returns. Throws the refusal InvalidSpec for what it throws. */
function valid<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (!(error instanceof KelletError)) throw error;
    throw new RefusalError('InvalidSpec', error.message);
  }
}
