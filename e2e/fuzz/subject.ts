// What a fuzzer works on: a tenant of its own with one of each thing, so that nothing else is in its way or in its reach.
import { randomBytes } from 'node:crypto';
import { KelletClient } from '@kellet/client';
import type { Ids } from './corpus.ts';

interface Account {
  readonly email: string;
  readonly password: string;
}

/** The tenant and whom it knows. */
export interface Subject {
  readonly admin: Account;
  readonly viewer: Account;
  readonly deviceKey: string;
  readonly serviceKey: string;
  readonly ids: Ids;
}

/** Makes the tenant as the platform's administrator, with a rate limit that no run meets. */
export async function makeSubject({ rest: baseUrl, platform }: { rest: string; platform: Account }): Promise<Subject> {
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
  await admin.post('/api/v1/auth/users', { body: { ...viewer, role: 'viewer' } });
  const ids = {
    device_id: [device.device_id, second.device?.device_id ?? '', 'unknown'],
    gateway_device_id: [device.device_id, 'unknown'],
    profile_id: [profile_id, 'unknown'],
    target_profile_id: [profile_id],
    template_id: [template.template_id, 'unknown'],
    group_id: [group.group_id, 'unknown'],
    correlation_id: [command.correlation_id, 'unknown'],
    data_hash_hex: ['0'.repeat(64), 'zz'],
    provision_key: [template.provision_key ?? ''],
  };
  return { admin: account, viewer, deviceKey: device.api_key, serviceKey: service.api_key ?? '', ids };
}
