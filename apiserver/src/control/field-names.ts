// Translates field names in messages: `spec.otaPolicy.maxAttempts` of a custom resource is `ota_policy.max_attempts` in
// the API (manifest-mapping.ts).
import type { DescField, DescMessage } from '@bufbuild/protobuf';
import type { Kind } from '@kellet/crds';
import { type Difference, differences, requestSchemas } from './manifest-mapping.ts';

/** Returns the paths that differ between spec and request in more than spelling, the longest first. */
const renamed = (kind: Kind): [spec: string, request: string][] =>
  (differences[requestSchemas[kind].typeName] ?? []).flatMap(({ field, spec, isReference }) => {
    if (spec === undefined) return [];
    return isReference
      ? [
          [`${spec}.name`, field],
          [spec, field],
        ]
      : [[spec, field]];
  });

// A path in a message: names separated by dots, each with optional indexes or keys in brackets.
const name = String.raw`[A-Za-z_][A-Za-z0-9_]*`;
const index = String.raw`(?:\[(?:"(?:[^"\\]|\\.)*"|[^\]"]*)\])*`;
const path = String.raw`${name}${index}(?:\.${name}${index})*`;
const paths = new RegExp(String.raw`(?<![\w."'/-])(\.?spec\.)?(${path})(?![\w"'/-])`, 'g');
const parts = new RegExp(String.raw`(?<=^|\.)(${name})(${index})`, 'g');

/** Translates a message for a caller of the API: `spec.packageRef: not found` → `package_id: not found`. */
export const inContract = (kind: Kind, message: string): string =>
  message.replace(paths, (found, prefix: string | undefined, manifestPath: string) => {
    const translated = contractPath(kind, manifestPath);
    // Words that are not fields stay unchanged, and so do ambiguous ones (type, version).
    if (prefix === undefined && (translated === undefined || !/[A-Z]/.test(manifestPath))) return found;
    return translated ?? manifestPath;
  });

/** Translates a message for the author of a manifest: `ota_policy.max_attempts …` → `spec.otaPolicy.maxAttempts …`. */
export const inManifest = (kind: Kind, message: string): string =>
  message.replace(paths, (found, prefix: string | undefined, contractPath: string, offset: number) => {
    // A word that only might be a field (type, version) is one at the beginning alone.
    if (prefix !== undefined || (offset > 0 && !/[_.]/.test(contractPath))) return found;
    const translated = manifestPath(kind, contractPath);
    return translated === undefined ? found : `spec.${translated}`;
  });

/** Returns the path in the request of a field of the spec, or undefined if no request has it. */
export function contractPath(kind: Kind, manifest: string): string | undefined {
  const moved = renamed(kind).find(([from]) => isPathOf(from, manifest));
  if (moved) return moved[1] + manifest.slice(moved[0].length);
  return translate(requestSchemas[kind], manifest, (field) => [field.localName, field.name]);
}

function manifestPath(kind: Kind, contract: string): string | undefined {
  const moved = renamed(kind).find(([, to]) => isPathOf(to, contract));
  if (moved) return moved[0].replace(/\.name$/, '') + contract.slice(moved[1].length);
  const isRequestOnly = ({ field, spec }: Difference): boolean => spec === undefined && field === contract;
  if (differences[requestSchemas[kind].typeName]?.some(isRequestOnly)) return undefined;
  return translate(requestSchemas[kind], contract, (field) => [field.name, field.localName]);
}

const isPathOf = (field: string, whole: string): boolean =>
  whole.startsWith(field) && /^(?:$|[.[])/.test(whole.slice(field.length));

/** Translates a path field by field. Returns undefined if its first name is not a field of the message. */
function translate(
  message: DescMessage,
  whole: string,
  spelling: (field: DescField) => readonly [from: string, to: string],
): string | undefined {
  let current: DescMessage | undefined = message;
  let isKey = false;
  const translated: string[] = [];
  for (const [, name, index] of whole.matchAll(parts)) {
    if (isKey) {
      // A map key is data, not a field name.
      isKey = false;
      translated.push(`${name}${index}`);
      continue;
    }
    const field: DescField | undefined = current?.fields.find((candidate) => spelling(candidate)[0] === name);
    if (!field && translated.length === 0) return undefined;
    translated.push(`${field ? spelling(field)[1] : name}${index}`);
    current = field?.message;
    // A key in brackets is part of `index`.
    isKey = field?.fieldKind === 'map' && index === '';
  }
  return translated.join('.');
}
