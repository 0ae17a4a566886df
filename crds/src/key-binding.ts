// Binds the hash of a provision key to one tenant. Anyone who can read a manifest can read the SHA-256 of a key, but
// only a holder of the key can compute its binding to a tenant, and the binding is useless to any other tenant.
import { createHash } from 'node:crypto';

/**
 * Returns the binding of a provision key to a tenant: the SHA-256 of `kellet-provision-key:<tenant>:<key>`, in
 * hexadecimal.
 */
export const provisionKeyBinding = (tenantId: string, key: string): string =>
  createHash('sha256').update(`kellet-provision-key:${tenantId}:${key}`, 'utf8').digest('hex');
