// The headings under which a reader finds the operations.
import type { JsonObject } from '@bufbuild/protobuf';

/** Operations that belong together for a reader: those of a service, or of some of its paths. */
interface Tag {
  readonly name: string;
  readonly description: string;
  readonly service: string;
  /** Beginnings of paths below /api/v1/; without them, what no other tag of the service takes. */
  readonly paths?: readonly string[];
}

/** In the order in which a newcomer reads them. */
const tags: readonly Tag[] = [
  { name: 'sign-in', description: 'Sign-in, tokens and sessions.', service: 'AuthService' },
  {
    name: 'users',
    description: 'People of a tenant, and groups that give them scopes.',
    service: 'AuthService',
    paths: ['auth/users', 'auth/groups'],
  },
  {
    name: 'API keys',
    description: 'Keys of service accounts.',
    service: 'AuthService',
    paths: ['auth/api-keys'],
  },
  {
    name: 'second factor',
    description: 'Authenticator applications, security keys and recovery codes.',
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
    description: "Tenants, their limits and defaults: the platform's view, and a tenant's own.",
    service: 'AuthService',
    paths: ['tenant'],
  },
  { name: 'profiles', description: 'The defaults that devices inherit.', service: 'ProfileService' },
  {
    name: 'provisioning',
    description: 'Templates, their keys, and the claim of a device.',
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
    description: 'Devices that belong together.',
    service: 'DeviceRegistryService',
    paths: ['device-groups'],
  },
  {
    name: 'alarms',
    description: 'What is wrong with devices, and who takes care of it.',
    service: 'DeviceRegistryService',
    paths: ['alarms'],
  },
  {
    name: 'entities',
    description: 'Customers, assets, and views on them.',
    service: 'DeviceRegistryService',
  },
  { name: 'telemetry', description: 'Points in; latest values and history out.', service: 'TelemetryService' },
  { name: 'device link', description: 'Commands, attributes and gateways.', service: 'DeviceLinkService' },
  {
    name: 'ota',
    description: 'Packages, rollouts, and what a device downloads and reports.',
    service: 'OtaService',
  },
  { name: 'rules', description: 'Rules over points, in CEL.', service: 'RulesService' },
  { name: 'anchors', description: 'Batches of points on the chain.', service: 'AnchorService' },
  { name: 'verify', description: 'Proofs that anyone can check.', service: 'VerifierService' },
];

/** The tag of a service's operation at a path. Throws when there is none. */
export function tagOf(service: string, path: string): string {
  const below = path.replace('/api/v1/', '');
  const ofService = tags.filter((tag) => tag.service === service);
  const found =
    ofService.find(({ paths }) => paths?.some((start) => below.startsWith(start))) ??
    ofService.find(({ paths }) => paths === undefined);
  if (!found) throw new Error(`${service} has no tag for ${path}`);
  return found.name;
}

/** The tag of the gateway's own routes. */
export const gatewayTag = 'gateway';

/** `tags` of the document. */
export const documentTags: JsonObject[] = [
  ...tags.map(({ name, description }) => ({ name, description })),
  { name: gatewayTag, description: 'Health, this document, and the callback of the chain.' },
];
