// Locations of the custom resource definitions, for code that installs them or reads their schemas.
import { fileURLToPath } from 'node:url';

const names = ['device-profile', 'provisioning-template', 'ota-package', 'ota-rollout', 'tenant'] as const;

/** Returns the absolute path of each definition's YAML file, by the kebab-case name of its kind. */
export function crdManifests(): Record<(typeof names)[number], string> {
  const entries = names.map((name) => [name, fileURLToPath(new URL(`../${name}.yaml`, import.meta.url))] as const);
  return Object.fromEntries(entries) as Record<(typeof names)[number], string>;
}
