// Fixtures of e2e tests: signed-in users, profiles, templates, devices and packages. Every call creates new objects
// with unique names.
import { createHash, randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Schema } from '@kellet/client';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest } from '../../dev/clients/rest.ts';
import type { DeviceOptions, SimulatedDevice } from '../../dev/devices/device.ts';
import { Fleet } from '../../dev/devices/fleet.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';

/** Returns a unique name. */
export const unique = (prefix: string): string => `${prefix}-${randomBytes(4).toString('hex')}`;

// Access tokens last 15 minutes; the run may take longer.
const sessionMilliseconds = 8 * 60_000;
const sessions = new Map<string, { since: number; rest: Promise<Rest> }>();

/** Returns a client for this account, which signs in again when its token gets old. */
function signedIn(account: { email: string; password: string }): Promise<Rest> {
  const known = sessions.get(account.email);
  if (known && performance.now() - known.since < sessionMilliseconds) return known.rest;
  const rest = Rest.login(stack().info.rest, account);
  sessions.set(account.email, { since: performance.now(), rest });
  return rest;
}

/** The API as the administrator of the tenant `demo`. */
export const admin = (): Promise<Rest> => signedIn(stack().info);
/** The API as the administrator of the other tenant. */
export const otherAdmin = (): Promise<Rest> => signedIn(stack().info.other);
/** The API as the administrator of the installation. */
export const platformAdmin = (): Promise<Rest> => signedIn(stack().info.platform);
/** The API without a credential. */
export const anonymous = (): Rest => new Rest(stack().info.rest);

/** kubectl in the namespace of the tenant `demo`. */
export const kubectl = async (): Promise<Kubectl> =>
  new Kubectl(await stack().kubectl(), stack().info.kubeconfig, stack().info.namespace);

/** Creates a user of the tenant and signs in as that user. */
export async function makeUser(as: Rest, role: 'viewer' | 'operator' | 'tenant_admin') {
  const account = { email: `${unique(role)}@demo.test`, password: randomBytes(18).toString('base64url') };
  const user = await as.client.post('/api/v1/auth/users', { body: { ...account, name: role, role } });
  return { ...account, ...user, rest: await Rest.login(as.base, account) };
}

export type Profile = Schema<'Profile'>;
export type OtaPackage = Schema<'OtaPackage'>;

/** Creates a profile with a unique name and type, unless `fields` override them. */
export async function makeProfile(as: Rest, fields: Partial<Schema<'CreateProfileRequest'>> = {}): Promise<Profile> {
  const name = unique('profile');
  return as.client.post('/api/v1/profiles', {
    body: { name, type: name, anchoring_policy: { mode: 'merkle' }, ...fields },
  });
}

/** Creates a template; any hardware id may claim unless `fields` override this. */
export async function makeTemplate(
  as: Rest,
  profileId: string,
  fields: Partial<Schema<'CreateTemplateRequest'>> = {},
): Promise<Schema<'Template'> & { provision_key: string }> {
  const body = { name: unique('template'), profile_id: profileId, hardware_id_pattern: '*', ...fields };
  const template = await as.client.post('/api/v1/provisioning/templates', { body });
  return { ...template, provision_key: template.provision_key ?? '' };
}

/** Creates a fleet of claimed devices of one profile. */
export async function makeFleet(
  as: Rest,
  profileId: string,
  count: number,
  optionsOf: (index: number) => Partial<DeviceOptions> = () => ({}),
): Promise<Fleet> {
  const { provision_key } = await makeTemplate(as, profileId);
  const prefix = unique('hw');
  const fleet = new Fleet(
    Array.from({ length: count }, (_, index) => ({
      base: as.base,
      name: `${prefix}-${index}`,
      hardwareId: `${prefix}-${index}`,
      ...optionsOf(index),
    })),
  );
  await fleet.claim(provision_key);
  return fleet;
}

/** Creates a claimed device with a new profile. */
export async function makeDevice(
  as: Rest,
  profile: Partial<Schema<'CreateProfileRequest'>> = {},
): Promise<SimulatedDevice> {
  const { profile_id } = await makeProfile(as, profile);
  const fleet = await makeFleet(as, profile_id, 1);
  return fleet.devices[0]!;
}

/** A file under the stack's file server. */
export interface Artifact {
  uri: string;
  sha256: string;
  sizeBytes: number;
  bytes: Buffer;
}

/** Creates a file of this content, or of this size, for packages to fetch. */
export async function makeArtifact(content: Buffer | number = 150_000): Promise<Artifact> {
  const bytes = typeof content === 'number' ? randomBytes(content) : content;
  const name = `${unique('artifact')}.bin`;
  await writeFile(join(stack().artifactsFolder, name), bytes);
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  return { uri: `${stack().info.artifacts}/${name}`, sha256, sizeBytes: bytes.length, bytes };
}

/** Creates a package of an artifact; `fields` take precedence. */
export async function makePackage(
  as: Rest,
  fields: Partial<Schema<'CreatePackageRequest'>> & { version: string },
  artifact?: Artifact,
): Promise<OtaPackage & { artifact: Artifact }> {
  const file = artifact ?? (await makeArtifact());
  const body = {
    name: unique('package'),
    type: 'fw' as const,
    artifact_uri: file.uri,
    sha256: file.sha256,
    size_bytes: file.sizeBytes,
    ...fields,
  };
  return { ...(await as.client.post('/api/v1/ota/packages', { body })), artifact: file };
}

/** Fields of a rollout used in tests. */
export interface Rollout {
  rollout_id: string;
  name: string;
  status: 'active' | 'paused' | 'rolling_back' | 'completed';
  outcome?: string;
  message?: string;
  scheduled_count?: number;
  canary_percent: number;
  effective_percent?: number;
  failure_percent?: number;
  pause_reasons?: string[];
  counts: {
    eligible?: number;
    scheduled?: number;
    sent?: number;
    succeeded?: number;
    failed?: number;
    timed_out?: number;
  };
}
