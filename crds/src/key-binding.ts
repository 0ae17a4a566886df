// What binds the hash of a provision key to one tenant. The SHA-256 of a key may be read by anybody who can read a manifest;
// only who has the key itself can make the binding for a tenant, and a copied one is of no use to another tenant.
import { createHash } from 'node:crypto';

/** Returns the binding of a provision key to a tenant: the SHA-256 of `kellet-provision-key:<tenant>:<key>`, in hexadecimal. */
export const provisionKeyBinding = (tenantId: string, key: string): string =>
  createHash('sha256').update(`kellet-provision-key:${tenantId}:${key}`, 'utf8').digest('hex');
