// Checks the fields of a provider, and decides from its claims who may sign in and with which role.
import { invalidArgument } from '../../platform/errors.ts';
import type { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { textField } from '../../platform/requests/fields.ts';
import { type Role, tenantRoles } from '../roles/roles.ts';
import { isText } from './logout-claims.ts';

/** Checks the name of a provider. Throws INVALID_ARGUMENT. */
export function providerName(name: string): string {
  if (!/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(name) || name === 'providers' || name === 'callback') {
    throw invalidArgument('provider must be a DNS label other than providers and callback');
  }
  return name;
}

/**
 * Returns the name of a provider that was created without one: the host of its issuer with hyphens for dots, and the port.
 * The issuer has been checked.
 */
export const nameOfIssuer = (issuer: string): string =>
  new URL(issuer).host
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, 63)
    .replace(/^-|-$/g, '');

/** Checks an issuer. Throws INVALID_ARGUMENT if it is not a URL that may be called. */
export function issuerField(issuer: string, guard: OutboundGuard): string {
  textField('issuer', issuer, { minimum: 1, maximum: 512 });
  const problem = guard.problemOf(issuer);
  if (problem === 'address') throw invalidArgument('issuer leads to no address that may be called');
  if (problem) throw invalidArgument('issuer must be an https URL without user and password');
  if (/[?#]/.test(issuer)) throw invalidArgument('issuer must have neither query nor fragment');
  return issuer;
}

/** Returns the domains in lower case. Throws INVALID_ARGUMENT. */
export function domainsField(domains: readonly string[]): string[] {
  if (domains.length === 0) throw invalidArgument('allowed_domains must name at least one e-mail domain');
  if (domains.length > 100) throw invalidArgument('allowed_domains must have at most 100 entries');
  return domains.map((domain, index) => {
    const lower = domain.toLowerCase();
    if (
      lower.length > 253 ||
      !/^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(lower)
    )
      throw invalidArgument(`allowed_domains[${index}] must be a domain such as example.com`);
    return lower;
  });
}

/** Checks the roles of groups. Throws INVALID_ARGUMENT. */
export function mappingField(mapping: Readonly<Record<string, string>>): Record<string, string> {
  const entries = Object.entries(mapping);
  if (entries.length > 256) throw invalidArgument('role_mapping must have at most 256 entries');
  for (const [group, role] of entries) {
    textField('role_mapping key', group, { minimum: 1, maximum: 256 });
    if (!(tenantRoles as readonly string[]).includes(role)) {
      throw invalidArgument(`role_mapping[${group}] must be one of ${tenantRoles.join(', ')}`);
    }
  }
  return Object.fromEntries(entries);
}

/**
 * Returns the highest role of a person's groups; undefined if a mapping exists and has none of them. Without a mapping
 * it is viewer.
 */
export function roleOf(mapping: Readonly<Record<string, string>>, groups: unknown): Role | undefined {
  if (Object.keys(mapping).length === 0) return 'viewer';
  const listed = Array.isArray(groups) ? groups : [groups];
  const roles = new Set(
    listed.filter((group): group is string => typeof group === 'string').map((group) => ownValue(mapping, group)),
  );
  // tenantRoles begins with the highest.
  return tenantRoles.find((role) => roles.has(role));
}

const ownValue = (mapping: Readonly<Record<string, string>>, key: string): string | undefined =>
  Object.hasOwn(mapping, key) ? mapping[key] : undefined;

/** The claims of a provider about a person that are used here. */
export interface PersonClaims {
  readonly sub?: unknown;
  readonly email?: unknown;
  readonly email_verified?: unknown;
  readonly name?: unknown;
  readonly groups?: unknown;
}

/**
 * Returns the claims of an ID token, and from the userinfo endpoint those that it lacks. An address comes with what the same of
 * them says about it: the other may have verified another address.
 */
export function joinedClaims<Claims extends PersonClaims>(idToken: Claims, userinfo: PersonClaims): Claims {
  const { email, email_verified } = idToken.email_verified === undefined ? userinfo : idToken;
  return { ...userinfo, ...idToken, email, email_verified };
}

/** A person that the settings of a provider admit. */
export interface Person {
  readonly subject: string;
  readonly email: string;
  readonly name: string;
  readonly role: Role;
}

/** Returns the person that the claims describe, or the reason for refusing the sign-in. */
export function admit(
  claims: PersonClaims,
  provider: { readonly allowed_domains: readonly string[]; readonly role_mapping: Readonly<Record<string, string>> },
): Person | string {
  const { sub, email, email_verified: isVerified, name } = claims;
  if (!isText(sub)) return 'no subject';
  if (typeof email !== 'string' || !/^[^\s@\0]+@[^\s@\0]+$/.test(email) || email.length > 254)
    return 'no e-mail address';
  // Anyone can claim an address that nobody has verified.
  if (isVerified !== true) return 'the e-mail address is not verified';
  if (!provider.allowed_domains.includes(email.slice(email.indexOf('@') + 1).toLowerCase())) {
    return 'the e-mail domain is not allowed';
  }
  const role = roleOf(provider.role_mapping, claims.groups);
  if (!role) return 'none of the groups has a role';
  const shown = typeof name === 'string' && !name.includes('\0') ? [...name].slice(0, 128).join('') : '';
  return { subject: sub, email, name: shown, role };
}
