// The targets (services) that a process runs (KELLET_TARGET), and the addresses of the others.
import type { DescService } from '@bufbuild/protobuf';
import { AnchorService } from '@kellet/proto/es/kellet/v1/anchor_pb';
import { AuditService } from '@kellet/proto/es/kellet/v1/audit_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { VerifierService } from '@kellet/proto/es/kellet/v1/verifier_pb';
import { WebhookService } from '@kellet/proto/es/kellet/v1/webhook_pb';

/** The gRPC services of each target; the gateway and its live feed are called by clients alone. */
export const servicesOf = {
  gateway: [],
  auth: [AuthService, AuditService],
  'device-registry': [DeviceRegistryService],
  'device-link': [ProfileService, ProvisioningService, DeviceLinkService, OtaService],
  telemetry: [TelemetryService],
  'rules-engine': [RulesService, WebhookService],
  'chain-anchor': [AnchorService],
  verifier: [VerifierService],
  'dashboard-bff': [],
  control: [],
} as const satisfies Record<string, readonly DescService[]>;

/** The name of a service, or `control`. */
export type Target = keyof typeof servicesOf;

/** Every target. */
export const allTargets = Object.keys(servicesOf) as readonly Target[];

/**
 * Targets that share a process (docs/decisions/0015): /ws is a path of the gateway's port, and control applies the four
 * resources written through REST in the same call.
 */
const companions: Partial<Record<Target, Target>> = {
  gateway: 'dashboard-bff',
  'dashboard-bff': 'gateway',
  'device-link': 'control',
  control: 'device-link',
};

/**
 * Parses `all` or a comma-separated list, and adds targets that share a process. Throws an Error naming unknown
 * targets.
 */
export function parseTargets(text: string): ReadonlySet<Target> {
  const names = text.split(',').map((name) => name.trim());
  const unknown = names.filter((name) => name !== 'all' && !isTarget(name));
  if (unknown.length > 0) {
    throw new Error(`there is no target ${unknown.join(', ') || '""'}: all, or any of ${allTargets.join(', ')}`);
  }
  if (names.includes('all')) return new Set(allTargets);
  const named = names as Target[];
  return new Set(named.flatMap((target) => [target, companions[target] ?? target]));
}

/**
 * Returns the targets that a process calls but does not run: the gateway calls all services, other targets call none.
 */
export function remoteTargets(targets: ReadonlySet<Target>): Target[] {
  if (!targets.has('gateway')) return [];
  return allTargets.filter((target) => servicesOf[target].length > 0 && !targets.has(target));
}

/**
 * Parses `telemetry=host:9091,*=host:9091` to the addresses of the requested targets; `*` is every other one. Throws an
 * Error naming an invalid or missing address.
 */
export function parseAddresses(text: string, asked: readonly Target[]): ReadonlyMap<Target, string> {
  const given = new Map<string, string>();
  for (const entry of text.split(',').map((part) => part.trim())) {
    if (entry === '') continue;
    const [, name = '', address = ''] = /^([^=]*)=(.*)$/.exec(entry) ?? [];
    if (name !== '*' && !isTarget(name)) throw new Error(`"${entry}" does not begin with a target and "="`);
    if (!/^(\w+:)?\S+:\d{1,5}$/.test(address)) throw new Error(`"${entry}" does not end with host:port`);
    if (given.has(name)) throw new Error(`${name} has two addresses`);
    given.set(name, address);
  }
  const missing = asked.filter((target) => !given.has(target) && !given.has('*'));
  if (missing.length > 0) throw new Error(`no address is given for ${missing.join(', ')}`);
  return new Map(asked.map((target) => [target, given.get(target) ?? given.get('*')!]));
}

const isTarget = (name: string): name is Target => Object.hasOwn(servicesOf, name);
