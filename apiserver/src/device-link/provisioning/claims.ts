// The claim of a device: one transaction from the key to the device, its credentials and the event.
import type { ClaimDeviceRequest, ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import type { DeviceCredentials, IssuedCredentials, Wanted } from '../../auth/device-credentials/device-credentials.ts';
import { hasHadKey } from '../../auth/device-credentials/device-keys.ts';
import type { ChangeCoalescer } from '../../control/changes.ts';
import { credentialFields } from '../../device-registry/devices/credential-handlers.ts';
import { wantedCredentials } from '../../device-registry/devices/credential-type.ts';
import {
  changeDevice,
  checkDeviceQuota,
  type DeviceRow,
  findByHardwareId,
  findDevice,
  fleetFacts,
  insertDevice,
  notifyDeviceChanged,
  setCertificateExpiry,
} from '../../device-registry/devices/devices.ts';
import type { FleetChange, MembershipListener } from '../../device-registry/devices/fleet-changes.ts';
import { checkGroupsOf, joinGroups } from '../../device-registry/devices/group-members.ts';
import type { AuditFacts } from '../../platform/audit/audit-event.ts';
import type { AuditTrail } from '../../platform/audit/audit-trail.ts';
import type { Clock } from '../../platform/clock.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { retryConflicts } from '../../platform/database/retry-conflicts.ts';
import { alreadyExists, KelletError, permissionDenied } from '../../platform/errors.ts';
import { enqueue, type OutboxRelay } from '../../platform/events/outbox.ts';
import { provisionedSubject } from '../../platform/events/subjects.ts';
import { newId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { counter, type Registry } from '../../platform/observability/metrics.ts';
import { textField } from '../../platform/requests/fields.ts';
import type { CallContext, Implementation } from '../../platform/rpc.ts';
import { quotaOf, refuseClosedTenant } from '../../policies/tenant-reader.ts';
import { type ClaimDecision, type ClaimKey, decideClaim } from './claim-decision.ts';
import {
  type ClaimTemplateRow,
  countClaim,
  findClaimTemplate,
  findKeys,
  lockClaimTemplate,
  markKeyUsed,
} from './claim-store.ts';
import { ClaimThrottle } from './claim-throttle.ts';
import { keyExpiry, provisionKeyHash, type RegisteredKey, tenantOfKey } from './provision-key.ts';

/** How long the event waits for its response to be written before the sweep publishes it anyway. */
const holdMilliseconds = 1000;

/** Keys read by one statement, and claims that may wait for theirs in all. */
const maxKeysPerRead = 500;
const maxWaitingClaims = 10_000;

/** Reads of keys at a time, so that a slow one does not hold up every claim. */
const keyReadQueues = 4;

/** The result of one claim. */
interface Outcome {
  /** Empty if the key belongs to no tenant. */
  readonly tenantId: string;
  readonly decision: ClaimDecision;
  readonly template?: ClaimTemplateRow;
  readonly deviceId?: string;
  readonly issued?: IssuedCredentials | undefined;
  readonly eventPosition?: bigint;
}

/** A claim with checked fields and the tenant of its key. */
interface ClaimFields {
  readonly tenantId: string;
  readonly keyHash: Buffer;
  readonly hardwareId: string;
  readonly deviceName: string;
  readonly csr: string;
}

const claimKey = (row: ClaimTemplateRow): ClaimKey => ({
  enabled: row.enabled,
  expiresAt: keyExpiry(row.first_seen_at, row.expires_in_seconds),
  oneTime: row.one_time,
  usedBy: row.used_by_hardware_id ?? undefined,
  hardwareIdPattern: row.hardware_id_pattern,
});

/** What a claim works with. */
type ClaimParts = Pick<Parameters<typeof claimMethod>[0], 'clock' | 'membership' | 'credentials'>;

/** The handler of ClaimDevice. */
export function claimMethod(parts: {
  database: Database;
  outbox: OutboxRelay;
  clock: Clock;
  logger: Logger;
  metrics: Registry;
  changes: ChangeCoalescer;
  membership: MembershipListener;
  credentials: DeviceCredentials;
  audit: Pick<AuditTrail, 'within' | 'note'>;
}): Pick<Required<Implementation<typeof ProvisioningService>>, 'claimDevice'> {
  const { database, outbox, logger, changes, audit } = parts;
  const claims = counter(parts.metrics, 'kellet_claims_total', 'Claims by outcome.', ['outcome']);

  const throttle = new ClaimThrottle(parts.clock);
  // Claims that arrive while others read their keys read theirs together: a factory makes many at once.
  const keyReads = new Batches<Buffer, readonly RegisteredKey[]>(
    maxKeysPerRead,
    (_key, keyHashes) => database.systemRead((tx) => findKeys(tx, keyHashes)),
    maxWaitingClaims / keyReadQueues,
  );

  const claim = async (request: ClaimDeviceRequest, context: CallContext): Promise<Outcome> => {
    const { address } = context;
    const { key } = fieldsOf(request);
    const keyHash = provisionKeyHash(key);
    throttle.check(keyHash, address);
    const outcome = await claimWith(request, keyHash, context);
    if (outcome.decision.action === 'refuse') {
      throttle.refused(keyHash, address);
      audit.note(claimFacts(outcome, 'PERMISSION_DENIED', context));
    }
    return outcome;
  };

  const claimWith = async (request: ClaimDeviceRequest, keyHash: Buffer, context: CallContext): Promise<Outcome> => {
    const { key, hardwareId, deviceName } = fieldsOf(request);
    const registered = await keyReads.add(String(keyHash[0]! % keyReadQueues), keyHash);
    const tenantId = tenantOfKey(key, registered);
    if (tenantId === undefined) {
      const cause = registered.length === 0 ? 'unknown_key' : 'wrong_binding';
      return { tenantId: '', decision: { action: 'refuse', cause } };
    }
    const fields: ClaimFields = { tenantId, keyHash, hardwareId, deviceName, csr: request.csr };
    const record = (tx: Transaction, outcome: Outcome) => audit.within(tx, claimFacts(outcome, 'OK', context));
    const attempt = () =>
      retryConflicts(() => database.frequent(tenantId, (tx) => claimInTenant(tx, fields, parts, record)));
    return attempt().catch((error: unknown) => {
      if (error instanceof KelletError && error.code === 'ALREADY_EXISTS') return attempt();
      throw error;
    });
  };

  return {
    async claimDevice(request, context) {
      const { decision, template, deviceId, issued, eventPosition } = await claim(request, context);
      if (decision.action === 'refuse') {
        claims.inc({ outcome: decision.cause });
        logger.info({ cause: decision.cause, template: template?.template_id }, 'claim refused');
        // One error for every cause, so that it reveals nothing about keys.
        throw permissionDenied('the provision key does not allow this claim');
      }
      claims.inc({ outcome: outcomes[decision.action] });
      if (eventPosition !== undefined) {
        context.afterResponse(() => {
          outbox
            .release([eventPosition])
            .catch((error: unknown) => logger.debug({ err: error }, 'an event goes with the sweep'));
        });
      }
      if (decision.action !== 'repeat' && template) {
        const { tenant_id: tenantId, namespace } = template;
        changes.mark({ kind: 'ProvisioningTemplate', tenantId, namespace, name: template.resource_name });
      }
      return { deviceId: deviceId ?? '', ...credentialFields(issued ?? { apiKey: '' }) };
    },
  };
}

/** Returns the audit event of a claim, whose actor is the template with the given key. */
function claimFacts({ tenantId, template, deviceId = '' }: Outcome, result: string, context: CallContext): AuditFacts {
  const { address, requestId, metadata } = context;
  const actor = template
    ? { kind: 'template', id: template.template_id, name: template.resource_name }
    : { kind: 'public', id: '', name: '' };
  return {
    ...{ tenantId, actor, result, address, requestId },
    action: 'ProvisioningService/ClaimDevice',
    resource: { kind: 'device', id: deviceId },
    userAgent: metadata.get('user-agent') ?? '',
  };
}

const outcomes = { create: 'created', take: 'taken', repeat: 'repeated' } as const;

const refusedAsUnknown: ClaimDecision = { action: 'refuse', cause: 'unknown_key' };

function fieldsOf(request: ClaimDeviceRequest): { key: string; hardwareId: string; deviceName: string } {
  return {
    key: textField('provision_key', request.provisionKey, { minimum: 1, maximum: 512 }),
    deviceName: textField('device_name', request.deviceName, { minimum: 1, maximum: 256 }),
    hardwareId: textField('hardware_id', request.hardwareId, { minimum: 1, maximum: 256 }),
  };
}

/**
 * Decides a claim and carries it out, in three round trips: what the decision depends on, what it writes, and the commit.
 * Throws ALREADY_EXISTS if another claim of the hardware id was faster: then this one has to be repeated.
 */
async function claimInTenant(
  tx: Transaction,
  fields: ClaimFields,
  parts: ClaimParts,
  record: (tx: Transaction, outcome: Outcome) => Promise<void>,
): Promise<Outcome> {
  const { tenantId, keyHash, hardwareId } = fields;
  const [, unlocked, early, quota] = await Promise.all([
    refuseClosedTenant(tx, tenantId),
    findClaimTemplate(tx, tenantId, keyHash),
    findByHardwareId(tx, tenantId, hardwareId),
    quotaOf(tx, tenantId, 'devices'),
  ]);
  const template = unlocked?.one_time ? await lockClaimTemplate(tx, tenantId, keyHash) : unlocked;
  if (!template) return { tenantId, decision: refusedAsUnknown };
  // The holder of the lock on a one-time key may have made the device.
  const existing = template.one_time ? await findByHardwareId(tx, tenantId, hardwareId) : early;
  const decision = decideClaim({
    key: claimKey(template),
    hardwareId,
    existing: existing && {
      deviceId: existing.device_id,
      // Of other types, old ones are deleted. The children of gateways have this one.
      hasCredentials: existing.credential_type !== 'api_key' || (await hasHadKey(tx, tenantId, existing.device_id)),
    },
    now: template.now,
  });
  if (decision.action === 'refuse') return { tenantId, decision, template };
  // Before anything is used up.
  const wanted = await wantedCredentials(template.credential_type, fields.csr);
  if (decision.action === 'repeat') {
    const holder = { tenantId, deviceId: decision.deviceId };
    const issued =
      wanted.type === 'certificate' ? await parts.credentials.repeat(tx, holder, wanted.request) : undefined;
    return { tenantId, decision, template, deviceId: decision.deviceId, issued };
  }
  if (decision.action === 'create' && quota > 0) await checkDeviceQuota(tx, tenantId, quota);
  return provision(tx, { fields, template, decision, wanted }, parts, record);
}

/** A claim that creates or takes a device. */
interface Provisioning {
  readonly fields: ClaimFields;
  readonly template: ClaimTemplateRow;
  readonly decision: ClaimDecision & { readonly action: 'create' | 'take' };
  readonly wanted: Wanted;
}

/** Makes the device what the template says. Throws ALREADY_EXISTS if it was deleted or claimed in the meantime. */
async function take(tx: Transaction, { fields, template }: Provisioning, deviceId: string): Promise<FleetChange> {
  const { tenantId, hardwareId } = fields;
  const before = await findDevice(tx, tenantId, deviceId, 'FOR NO KEY UPDATE');
  if (before?.hardware_id !== hardwareId || (await hasHadKey(tx, tenantId, deviceId)))
    throw alreadyExists('the device is being claimed by another request');
  const changes: Partial<DeviceRow> = {
    ...{ name: fields.deviceName, profile_id: template.profile_id, credential_type: template.credential_type },
    gateway_device_id: null,
  };
  const after = await changeDevice(tx, tenantId, deviceId, new Map(Object.entries(changes)));
  await notifyDeviceChanged(tx, tenantId, deviceId);
  return { before: fleetFacts(before), after: fleetFacts(after!) };
}

/** Creates or takes the device of a claim, with its credentials and in the template's groups that still exist. */
async function provision(
  tx: Transaction,
  provisioning: Provisioning,
  { clock, membership, credentials }: ClaimParts,
  record: (tx: Transaction, outcome: Outcome) => Promise<void>,
): Promise<Outcome> {
  const { fields, template, decision, wanted } = provisioning;
  const { tenantId, keyHash, hardwareId, deviceName: name } = fields;
  const { profile_id: profileId, template_id: templateId, default_group_ids: groupIds } = template;
  const deviceId = decision.action === 'take' ? decision.deviceId : newId();
  const credentialType = template.credential_type;
  const inserted =
    decision.action === 'create' &&
    insertDevice(tx, { ...{ tenantId, deviceId, name, hardwareId, profileId, groupIds, credentialType } });
  const change =
    decision.action === 'take'
      ? await take(tx, provisioning, deviceId)
      : { after: { deviceId, hardwareId, profileId, firmwareVersion: '', softwareVersion: '' } };
  const issue = async (): Promise<IssuedCredentials> => {
    const issued = await credentials.issue(tx, { tenantId, deviceId }, wanted);
    await setCertificateExpiry(tx, tenantId, deviceId, issued.certificateExpiresAt);
    return issued;
  };
  const data = {
    tenant_id: tenantId,
    device_id: deviceId,
    name,
    hardware_id: hardwareId,
    profile_id: profileId,
    template_id: templateId,
  };
  const event = { tenantId, subject: provisionedSubject, resource: deviceId, data, holdMilliseconds };
  const made: Outcome = { tenantId, decision, template, deviceId };
  const [issued, eventPosition] = await Promise.all([
    issue(),
    enqueue(tx, event, clock),
    inserted,
    groupIds.length > 0 && joinGroups(tx, tenantId, deviceId, groupIds),
    // One that is created has no others.
    decision.action === 'take' && groupIds.length > 0 && checkGroupsOf(tx, tenantId, [deviceId]),
    decision.useUp && markKeyUsed(tx, tenantId, keyHash, hardwareId),
    countClaim(tx, tenantId, templateId),
    record(tx, made),
    // Last, because a running rollout of the profile stays locked from here to the commit.
    membership.devicesChanged(tx, tenantId, [change]),
  ]);
  return { ...made, issued, eventPosition };
}
