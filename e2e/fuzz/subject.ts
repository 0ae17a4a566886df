// Test data of a fuzz run: a separate tenant with one object of each kind.
import { createHash, randomBytes } from 'node:crypto';
import { KelletClient, type Schema } from '@kellet/client';
import { requestExamples } from '../../apiserver/src/openapi/examples.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import type { Ids } from './corpus.ts';

interface Account {
  readonly email: string;
  readonly password: string;
}

/** The tenant and its accounts. */
export interface Subject {
  readonly admin: Account;
  readonly viewer: Account;
  readonly deviceKey: string;
  readonly serviceKey: string;
  readonly ids: Ids;
  /** Disposable ids for destructive operations. */
  readonly spare: Ids;
}

/**
 * Creates the tenant as the platform administrator, with an unreachable rate limit. With `isWhole` it includes the
 * proof of a point, for which it waits, and disposable objects.
 */
export async function makeSubject(
  { rest: baseUrl, platform }: { rest: string; platform: Account },
  { isWhole = false } = {},
): Promise<Subject> {
  const tenant_id = `fuzz-${randomBytes(4).toString('hex')}`;
  const account = { email: `admin@${tenant_id}.test`, password: 'a first long password' };
  const viewer = { email: `viewer@${tenant_id}.test`, password: 'a second long password' };
  const owner = await KelletClient.signIn({ baseUrl }, platform);
  await owner.post('/api/v1/tenants', {
    body: {
      tenant_id,
      rate_limit_per_minute: 10_000_000,
      admin_email: account.email,
      admin_password: account.password,
    },
  });
  const admin = await KelletClient.signIn({ baseUrl }, account);
  const { profile_id } = await admin.post('/api/v1/profiles', { body: { name: 'fuzz', type: 'fuzz' } });
  const template = await admin.post('/api/v1/provisioning/templates', { body: { name: 'fuzz', profile_id } });
  const device = await new KelletClient({ baseUrl }).post('/api/v1/provision', {
    body: { provision_key: template.provision_key ?? '', device_name: 'fuzz', hardware_id: 'fuzz' },
  });
  const second = await admin.post('/api/v1/devices', { body: { hardware_id: 'second', profile_id } });
  const group = await admin.post('/api/v1/device-groups', { body: { name: 'fuzz' } });
  const command = await admin.post('/api/v1/devices/{device_id}/rpc', {
    params: { path: { device_id: device.device_id } },
    body: { method: 'blink' },
  });
  const service = await admin.post('/api/v1/auth/api-keys', {
    body: { name: 'fuzz', scopes: ['devices:write', 'devices:read', 'telemetry:read', 'rpc:write', 'rpc:read'] },
  });
  const { user_id } = await admin.post('/api/v1/auth/users', { body: { ...viewer, role: 'viewer' } });
  const { package_id } = await makePackage(admin, baseUrl, '1.1.0');
  const { package_id: rollback_package_id } = await makePackage(admin, baseUrl, '1.0.0');
  const rolloutBody = { package_id, rollback_package_id, target_profile_id: profile_id, canary_percent: 100 };
  const { rollout_id } = await admin.post('/api/v1/ota/rollouts', { body: rolloutBody });
  const proof = isWhole ? await makeProof(admin, baseUrl, device) : undefined;
  // A profile has one rollout at a time, so a new one needs another profile.
  const { profile_id: free } = isWhole
    ? await admin.post('/api/v1/profiles', { body: { name: 'free', type: 'fuzz' } })
    : { profile_id };
  const ids = {
    device_id: [device.device_id, second.device?.device_id ?? '', 'unknown'],
    gateway_device_id: [device.device_id, 'unknown'],
    profile_id: [profile_id, 'unknown'],
    target_profile_id: [free],
    template_id: [template.template_id, 'unknown'],
    group_id: [group.group_id, 'unknown'],
    correlation_id: [command.correlation_id, 'unknown'],
    package_id: [package_id, 'unknown'],
    rollback_package_id: [rollback_package_id],
    rollout_id: [rollout_id, 'unknown'],
    user_id: [user_id, 'unknown'],
    key_id: [service.key_id, 'unknown'],
    tenant_id: [tenant_id, 'unknown'],
    batch_id: [proof?.batch_id ?? 'unknown'],
    data_hash_hex: [proof?.data_hash ?? '0'.repeat(64), 'zz'],
    provision_key: [template.provision_key ?? ''],
  };
  const spare = isWhole ? await makeSpares(admin, { profile_id, rolloutBody }) : {};
  return { admin: account, viewer, deviceKey: device.api_key, serviceKey: service.api_key ?? '', ids, spare };
}

/** Creates disposable objects. */
async function makeSpares(
  admin: KelletClient,
  { profile_id, rolloutBody }: { profile_id: string; rolloutBody: Schema<'CreateRolloutRequest'> },
): Promise<Ids> {
  const { device } = await admin.post('/api/v1/devices', { body: { hardware_id: 'spare', profile_id } });
  const profile = await admin.post('/api/v1/profiles', { body: { name: 'spare', type: 'spare' } });
  const template = await admin.post('/api/v1/provisioning/templates', { body: { name: 'spare', profile_id } });
  const group = await admin.post('/api/v1/device-groups', { body: { name: 'spare' } });
  const rollout = await admin.post('/api/v1/ota/rollouts', {
    body: { ...rolloutBody, name: 'spare', target_profile_id: profile.profile_id },
  });
  const command = await admin.post('/api/v1/devices/{device_id}/rpc', {
    params: { path: { device_id: device?.device_id ?? '' } },
    body: { method: 'blink', persistent: true },
  });
  const key = await admin.post('/api/v1/auth/api-keys', { body: { name: 'spare', scopes: ['devices:read'] } });
  return {
    device_id: [device?.device_id ?? ''],
    profile_id: [profile.profile_id],
    template_id: [template.template_id],
    group_id: [group.group_id],
    rollout_id: [rollout.rollout_id],
    correlation_id: [command.correlation_id],
    key_id: [key.key_id],
  };
}

/** Creates a package with an uploaded artifact. */
async function makePackage(admin: KelletClient, baseUrl: string, version: string): Promise<Schema<'OtaPackage'>> {
  const artifact = randomBytes(70_000);
  const made = await admin.post('/api/v1/ota/packages', {
    body: {
      ...{ name: `fuzz ${version}`, type: 'fw', version, artifact_uri: 'upload://', size_bytes: artifact.length },
      sha256: createHash('sha256').update(artifact).digest('hex'),
    },
  });
  const uploaded = await fetch(`${baseUrl}/api/v1/ota/packages/${made.package_id}/artifact`, {
    method: 'PUT',
    headers: { authorization: `Bearer ${await admin.bearer()}`, 'content-type': 'application/octet-stream' },
    body: artifact,
  });
  if (!uploaded.ok) throw new Error(`uploading the artifact returned ${uploaded.status}`);
  return made;
}

/** Sends the documented point of the device and waits for its proof. */
async function makeProof(
  admin: KelletClient,
  baseUrl: string,
  { device_id, api_key }: { device_id: string; api_key: string },
): Promise<Schema<'Proof'>> {
  await new KelletClient({ baseUrl, credential: api_key }).post('/api/v1/telemetry', {
    body: { points: [{ ...(requestExamples['VerifyRaw'] as Schema<'TelemetryPoint'>), device_id }] },
  });
  return waitUntil(
    async () => (await admin.get('/api/v1/verify/proofs', { params: { query: { limit: 1 } } })).proofs[0],
    {
      what: 'a proof',
      timeoutMilliseconds: 60_000,
    },
  );
}
