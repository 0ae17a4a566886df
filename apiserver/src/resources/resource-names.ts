// The Kubernetes name of a resource that a REST caller named freely.
import { createHash } from 'node:crypto';
import { alreadyExists, type KelletError } from '../platform/errors.ts';

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

/**
 * Returns the error for a name under which nothing can be created because of an object, called `held` now. An object that
 * was renamed keeps its resource, and so the name of it.
 */
export const nameTaken = (what: string, wanted: string, held: string): KelletError =>
  alreadyExists(
    held === wanted
      ? `a ${what} named ${JSON.stringify(wanted)} already exists`
      : `the custom resource ${resourceName(wanted)} belongs to the ${what} named ${JSON.stringify(held)}: ` +
          `choose another name, or delete that ${what}`,
  );
