// Applies ProvisioningTemplate resources and registers their keys.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { ProvisioningTemplateSpec } from '@kellet/crds';
import type { ObjectMeta, ProvisioningTemplateObservedSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { takeUp } from '../../control/applied-versions.ts';
import { type Applied, type Applier, type LastStep, type Refusal, RefusalError } from '../../control/applier.ts';
import { requestOf } from '../../control/manifest-mapping.ts';
import { credentialTypeOf } from '../../device-registry/devices/credential-type.ts';
import { unknownGroups } from '../../device-registry/devices/group-members.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { isId, namedId } from '../../platform/ids.ts';
import { findProfile } from './profile-store.ts';
import { keyExpiry, keyState } from './provision-key.ts';
import {
  deleteTemplate,
  detachTemplate,
  findTemplate,
  registerKey,
  type TemplateFields,
  type TemplateRow,
  writeTemplate,
} from './template-store.ts';

type Observed = MessageInitShape<typeof ProvisioningTemplateObservedSchema>;

/** Returns the state of a template's key and when it expires. */
export function keyOf(row: TemplateRow) {
  const expiresAt = keyExpiry(row.first_seen_at, row.expires_in_seconds);
  const { one_time: oneTime, used } = row;
  const state = keyState({ enabled: row.enabled && !row.detached, oneTime, used, expiresAt }, row.now);
  return { state, expiresAt };
}

/** Returns what is wrong with a template's own fields, or undefined. */
function templateProblem(spec: ProvisioningTemplateSpec): string | undefined {
  const { hardwareIdPattern = '*', expiresInSeconds = 0, defaultGroups = [], keySha256 = '', keyBinding = '' } = spec;
  if (hardwareIdPattern === '' || hardwareIdPattern.length > 256 || hardwareIdPattern.includes('\0')) {
    return 'spec.hardwareIdPattern must have 1 to 256 characters without NUL';
  }
  if (expiresInSeconds > 315_360_000) return 'spec.expiresInSeconds must be at most 315360000';
  if (defaultGroups.length > 32) return 'spec.defaultGroups must have at most 32 entries';
  if (!/^([0-9a-f]{64})?$/.test(keySha256)) return 'spec.keySha256 must be 64 lowercase hexadecimal digits';
  if (!/^([0-9a-f]{64})?$/.test(keyBinding)) return 'spec.keyBinding must be 64 lowercase hexadecimal digits';
  const { credentialType } = requestOf('ProvisioningTemplate', spec);
  return credentialTypeOf(credentialType) ? undefined : 'spec.credentialType must be ApiKey, Psk or Certificate';
}

/** Applies ProvisioningTemplate resources. */
export class TemplateApplier implements Applier<ProvisioningTemplateSpec, Observed> {
  private readonly database: Database;

  constructor(database: Database) {
    this.database = database;
  }

  apply(meta: ObjectMeta, spec: ProvisioningTemplateSpec, last?: LastStep): Promise<Applied<Observed>> {
    const problem = templateProblem(spec);
    if (problem) throw new RefusalError('InvalidSpec', problem);
    const { tenantId } = meta;
    const id = namedId(tenantId, 'template', meta.name);
    return this.database.tenant(tenantId, async (tx) => {
      await takeUp(tx, 'ProvisioningTemplate', meta);
      const fields = await resolved(tx, tenantId, spec, await findTemplate(tx, tenantId, id));
      await registerKey(tx, tenantId, fields.keyHash, bindingOf(spec));
      await writeTemplate(tx, id, meta, fields);
      const row = (await findTemplate(tx, tenantId, id))!;
      const { state, expiresAt } = keyOf(row);
      const keyExpiresAt = expiresAt && timestampFromDate(expiresAt);
      await last?.(tx);
      return { id, observed: { keyState: state, claims: row.claims, keyExpiresAt } };
    });
  }

  remove(meta: ObjectMeta, detach: boolean): Promise<Refusal | undefined> {
    const id = namedId(meta.tenantId, 'template', meta.name);
    return this.database.tenant(meta.tenantId, async (tx) => {
      await (detach ? detachTemplate : deleteTemplate)(tx, meta.tenantId, id);
      return undefined;
    });
  }
}

/** Returns the binding stated by the manifest, or undefined. */
const bindingOf = ({ keySha256, keyBinding }: ProvisioningTemplateSpec): Buffer | undefined =>
  keySha256 && keyBinding ? Buffer.from(keyBinding, 'hex') : undefined;

/**
 * Returns the hash of the key: the manifest's, else that of the current key. Throws the refusal InvalidSpec if there is
 * none.
 */
function keyHashOf(spec: ProvisioningTemplateSpec, held: TemplateRow | undefined): Buffer {
  if (spec.keySha256) return Buffer.from(spec.keySha256, 'hex');
  if (!held) throw new RefusalError('InvalidSpec', 'spec.keySha256 is required as long as there is no key');
  return held.key_hash;
}

/**
 * Returns the template with its references resolved and locked. Throws the refusal ReferenceNotFound. A group that the
 * template already names may have been deleted, so that the template can still be suspended and its key rotated; claims
 * skip it.
 */
async function resolved(
  tx: Transaction,
  tenantId: string,
  spec: ProvisioningTemplateSpec,
  held: TemplateRow | undefined,
): Promise<TemplateFields> {
  const keyHash = keyHashOf(spec, held);
  const profileId = namedId(tenantId, 'profile', spec.profileRef.name);
  const profile = await findProfile(tx, tenantId, profileId, 'FOR KEY SHARE');
  if (!profile || profile.detached) {
    throw new RefusalError('ReferenceNotFound', `spec.profileRef: there is no DeviceProfile ${spec.profileRef.name}`);
  }
  const template = requestOf('ProvisioningTemplate', spec);
  const groupIds = [...new Set(template.defaultGroupIds.map((group) => group.toLowerCase()))];
  const unknown = [
    ...groupIds.filter((group) => !isId(group)),
    ...(await unknownGroups(tx, tenantId, groupIds.filter(isId))),
  ].find((group) => !held?.default_group_ids.includes(group));
  if (unknown !== undefined) {
    throw new RefusalError('ReferenceNotFound', `spec.defaultGroups: there is no device group ${unknown}`);
  }
  return {
    profileId,
    // The default of the custom resource definition, for a spec that has not been through the API server.
    hardwareIdPattern: template.hardwareIdPattern || '*',
    oneTime: template.oneTime,
    expiresInSeconds: template.expiresInSeconds,
    credentialType: credentialTypeOf(template.credentialType) ?? 'api_key',
    defaultGroupIds: groupIds,
    enabled: template.enabled !== false,
    keyHash,
  };
}
