// Derives Kubernetes names from the names that REST callers choose.
import { createHash } from 'node:crypto';
import { alreadyExists, type KelletError } from '../platform/errors.ts';

/** Maximum length without the hash. Leaves room for the hash and for derived names (`<name>-provision-key`). */
const maximumForm = 57;

/**
 * Returns the DNS-safe form of a name: lower case, with hyphens for everything but letters, digits and dots. If it differs
 * from the original, 5 hex digits of the original's SHA-256 are appended, so that different names stay distinct. The
 * result is deterministic, and a valid DNS subdomain of at most 63 characters.
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
