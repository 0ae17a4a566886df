// The argument of `status`.
import type { Kind } from '@kellet/crds';
import { usageError } from '../errors.ts';

/** Namespaced kinds, in the order in which they are shown. */
export const shownKinds = [
  'OtaRollout',
  'OtaPackage',
  'DeviceProfile',
  'ProvisioningTemplate',
] as const satisfies readonly Kind[];

/** A kind that `status` shows. */
export type StatusKind = (typeof shownKinds)[number];

/** Names of each kind: singular, plural and short name of the definition, and colloquial names. */
export const kindWords: Readonly<Record<StatusKind, readonly string[]>> = {
  OtaRollout: ['otarollout', 'otarollouts', 'otaro', 'rollout', 'rollouts'],
  OtaPackage: ['otapackage', 'otapackages', 'otapkg', 'package', 'packages'],
  DeviceProfile: ['deviceprofile', 'deviceprofiles', 'dprof', 'profile', 'profiles'],
  ProvisioningTemplate: ['provisioningtemplate', 'provisioningtemplates', 'ptmpl', 'template', 'templates'],
};

/** All kinds, one kind, or one object. */
export type StatusTarget =
  | { readonly kinds: readonly StatusKind[]; readonly name?: undefined }
  | { readonly kinds: readonly [StatusKind]; readonly name: string };

/** Parses the argument. A word that is not a kind is the name of a rollout. Throws PluginError `usage`. */
export function statusTarget(text: string | undefined): StatusTarget {
  if (text === undefined || text === 'all') return { kinds: shownKinds };
  const [word, name, ...more] = text.split('/') as [string, ...string[]];
  const kind = kindOf(word);
  if (name === undefined) return kind ? { kinds: [kind] } : { kinds: ['OtaRollout'], name: word };
  if (!kind || name === '' || more.length > 0) {
    throw usageError(
      `${text} is not KIND/NAME; kinds: ${shownKinds.map((shown) => kindWords[shown][0]).join(', ')}`,
      'status',
    );
  }
  return { kinds: [kind], name };
}

/** Returns the kind with this name, with or without the group, or undefined. */
function kindOf(word: string): StatusKind | undefined {
  const plain = word.toLowerCase().replace(/\.kellet\.dev$/, '');
  return shownKinds.find((kind) => kindWords[kind].includes(plain));
}
