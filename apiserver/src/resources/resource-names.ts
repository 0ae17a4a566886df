// The Kubernetes name of a resource that a REST caller named freely.
import { createHash } from 'node:crypto';

/** Room for the hash and for what is derived from a name (`<name>-provision-key`). */
const maximumForm = 57;

/**
 * The DNS-safe form of a name: lower case, everything but letters, digits and dots a hyphen. When the form differs from the
 * original, 5 hex digits of the original's SHA-256 keep different names apart (DECISIONS 15). The same name always gives the
 * same result, a valid DNS subdomain of at most 63 characters.
 */
export function resourceName(original: string): string {
  const form = original
    .toLowerCase()
    .replace(/[^a-z0-9.]+/g, '-')
    .replace(/-*\.[-.]*/g, '.')
    .slice(0, maximumForm)
    .replace(/^[-.]+|[-.]+$/g, '');
  if (form === original) return form;
  const hash = createHash('sha256').update(original).digest('hex').slice(0, 5);
  return form === '' ? `unnamed-${hash}` : `${form}-${hash}`;
}
