// Tags that group the operations for readers.
import type { JsonObject } from '@bufbuild/protobuf';

/** A group of operations: those of a service, or of some of its paths. */
interface Tag {
  readonly name: string;
  readonly description: string;
  readonly service: string;
  /** Path prefixes below /api/v1/; if omitted, the paths that no other tag of the service matches. */
  readonly paths?: readonly string[];
}

/** In reading order for newcomers. */
const tags: readonly Tag[] = [
  { name: 'sign-in', description: 'Sign-in, tokens and sessions.', service: 'AuthService' },
  {
    name: 'users',
    description: 'Users of a tenant, groups that grant them scopes, and sign-ins that are delayed.',
    service: 'AuthService',
    paths: ['auth/users', 'auth/groups', 'auth/lockouts'],
  },
  {
    name: 'API keys',
    description: 'Keys of service accounts.',
    service: 'AuthService',
    paths: ['auth/api-keys'],
  },
  {
    name: 'second factor',
    description: 'Authenticator apps, security keys and recovery codes.',
    service: 'AuthService',
    paths: ['auth/mfa'],
  },
  {
    name: 'single sign-on',
    description: 'Sign-in at an OpenID Connect provider.',
    service: 'AuthService',
    paths: ['auth/sso'],
  },
  {
    name: 'tenants',
    description: "Tenants, their limits and defaults: the platform's view, and the tenant's own.",
    service: 'AuthService',
    paths: ['tenant'],
  },
  { name: 'audit', description: 'Who changed what, when, and from where.', service: 'AuditService' },
  { name: 'profiles', description: 'Defaults that devices inherit.', service: 'ProfileService' },
  {
    name: 'provisioning',
    description: 'Templates, their keys, and device claims.',
    service: 'ProvisioningService',
  },
  {
    name: 'devices',
    description: 'Devices and their credentials.',
    service: 'DeviceRegistryService',
    paths: ['devices'],
  },
  {
    name: 'device groups',
    description: 'Named sets of devices.',
    service: 'DeviceRegistryService',
    paths: ['device-groups'],
  },
  {
    name: 'alarms',
    description: 'Faults of devices and how they are handled.',
    service: 'DeviceRegistryService',
    paths: ['alarms'],
  },
  {
    name: 'entities',
    description: 'Customers, assets and entity views.',
    service: 'DeviceRegistryService',
  },
  { name: 'telemetry', description: 'Ingestion, latest values and history.', service: 'TelemetryService' },
  { name: 'device link', description: 'Commands, attributes and gateways.', service: 'DeviceLinkService' },
  {
    name: 'ota',
    description: 'Packages, rollouts, and the device side of an update.',
    service: 'OtaService',
  },
  { name: 'rules', description: 'Rules over telemetry, in CEL.', service: 'RulesService' },
  { name: 'webhooks', description: 'Events sent to servers of the tenant.', service: 'WebhookService' },
  { name: 'anchors', description: 'Batches of points anchored on the chain.', service: 'AnchorService' },
  { name: 'verify', description: 'Proofs that anyone can verify.', service: 'VerifierService' },
];

/** Returns the tag of a service's operation at a path. Throws if there is none. */
export function tagOf(service: string, path: string): string {
  const below = path.replace('/api/v1/', '');
  const ofService = tags.filter((tag) => tag.service === service);
  const found =
    ofService.find(({ paths }) => paths?.some((start) => below.startsWith(start))) ??
    ofService.find(({ paths }) => paths === undefined);
  if (!found) throw new Error(`${service} has no tag for ${path}`);
  return found.name;
}

/** Tag of the gateway's own routes. */
export const gatewayTag = 'gateway';

/** `tags` of the document. */
export const documentTags: JsonObject[] = [
  ...tags.map(({ name, description }) => ({ name, description })),
  { name: gatewayTag, description: 'Health, this document, and callbacks from the chain.' },
];
