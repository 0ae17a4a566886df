// What `status` is asked about.
import type { Kind } from '@kellet/crds';
import { usageError } from '../errors.ts';

/** Kinds that live in a tenant's namespace, in the order in which they are shown. */
export const shownKinds = [
  'OtaRollout',
  'OtaPackage',
  'DeviceProfile',
  'ProvisioningTemplate',
] as const satisfies readonly Kind[];

/** A kind that `status` shows. */
export type StatusKind = (typeof shownKinds)[number];

/** Words for each kind: singular, plural and short name of the definition, and what people say. */
export const kindWords: Readonly<Record<StatusKind, readonly string[]>> = {
  OtaRollout: ['otarollout', 'otarollouts', 'otaro', 'rollout', 'rollouts'],
  OtaPackage: ['otapackage', 'otapackages', 'otapkg', 'package', 'packages'],
  DeviceProfile: ['deviceprofile', 'deviceprofiles', 'dprof', 'profile', 'profiles'],
  ProvisioningTemplate: ['provisioningtemplate', 'provisioningtemplates', 'ptmpl', 'template', 'templates'],
};

/** Everything, one kind, or one object. */
export type StatusTarget =
  | { readonly kinds: readonly StatusKind[]; readonly name?: undefined }
  | { readonly kinds: readonly [StatusKind]; readonly name: string };

/** Reads the argument. A word that is no kind is a rollout's name. Throws PluginError `usage`. */
export function statusTarget(text: string | undefined): StatusTarget {
  if (text === undefined || text === 'all') return { kinds: shownKinds };
  const [word, name, ...more] = text.split('/') as [string, ...string[]];
  const kind = kindOf(word);
  if (name === undefined) return kind ? { kinds: [kind] } : { kinds: ['OtaRollout'], name: word };
  if (!kind || name === '' || more.length > 0) {
    throw usageError(
      `${text} is no KIND/NAME; kinds: ${shownKinds.map((shown) => kindWords[shown][0]).join(', ')}`,
      'status',
    );
  }
  return { kinds: [kind], name };
}

/** The kind that a word means, with or without the group; undefined when it means none. */
function kindOf(word: string): StatusKind | undefined {
  const plain = word.toLowerCase().replace(/\.kellet\.dev$/, '');
  return shownKinds.find((kind) => kindWords[kind].includes(plain));
}
