// The image's bill of materials in CycloneDX JSON 1.6 (https://cyclonedx.org/docs/1.6/json/): what it contains, in which
// version, from where and under which licence.
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { DebianPackage } from './debian-base.ts';
import { root } from './paths.ts';

interface InstalledManifest {
  name?: string;
  version?: string;
  license?: string | { type: string };
}

/** Parts of the lock file (https://docs.npmjs.com/cli/configuring-npm/package-lock-json). */
interface LockFile {
  packages: Record<string, { version?: string; integrity?: string }>;
}

/** A component; `scope` and the like are omitted. */
export interface Component {
  type: 'library' | 'application' | 'operating-system';
  name: string;
  version: string;
  purl: string;
  licenses?: { license: { name: string } }[] | { expression: string }[];
  hashes?: { alg: 'SHA-512'; content: string }[];
}

/** Returns the npm packages under a node_modules folder, sorted by path. */
export function npmComponents(nodeModules: string): Component[] {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as LockFile;
  const components: Component[] = [];
  for (const file of globSync(
    ['*/package.json', '@*/*/package.json', '**/node_modules/*/package.json', '**/node_modules/@*/*/package.json'],
    { cwd: nodeModules },
  ).toSorted()) {
    const path = file.slice(0, -'/package.json'.length);
    const { name, version, license } = JSON.parse(readFileSync(join(nodeModules, file), 'utf8')) as InstalledManifest;
    if (!name || !version || name.startsWith('@kellet/')) continue;
    const integrity = lock.packages[`node_modules/${path}`]?.integrity;
    const licence = typeof license === 'string' ? license : license?.type;
    components.push({
      type: 'library',
      name,
      version,
      purl: npmUrl(name, version),
      ...(licence && { licenses: [{ license: { name: licence } }] }),
      ...(integrity?.startsWith('sha512-') && {
        hashes: [{ alg: 'SHA-512', content: Buffer.from(integrity.slice('sha512-'.length), 'base64').toString('hex') }],
      }),
    });
  }
  return components;
}

/** Returns the components of Debian packages. */
export const debianComponents = (packages: readonly DebianPackage[], architecture: string): Component[] =>
  packages.map(({ name, version }) => ({
    type: 'library',
    name,
    version,
    purl: `pkg:deb/debian/${name}@${encodeURIComponent(version)}?arch=${architecture}`,
  }));

/** Returns the document. It has no serial number and no time, so that equal builds are equal. */
export const billOfMaterials = (version: string, components: readonly Component[]): unknown => ({
  bomFormat: 'CycloneDX',
  specVersion: '1.6',
  version: 1,
  metadata: { component: { type: 'application', name: 'kellet', version, purl: `pkg:generic/kellet@${version}` } },
  components,
});

/** Returns the package URL of an npm package (https://github.com/package-url/purl-spec). */
export const npmUrl = (name: string, version: string): string => `pkg:npm/${name.replace('@', '%40')}@${version}`;
