// Checks whether objects stored under one version of a schema can still be read and written under another.

/** The part of a structural schema that determines validity. */
export interface Schema {
  type?: string;
  format?: string;
  enum?: unknown[];
  required?: string[];
  properties?: Record<string, Schema>;
  items?: Schema;
  additionalProperties?: Schema;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  maxProperties?: number;
  'x-kubernetes-list-type'?: string;
  'x-kubernetes-list-map-keys'?: string[];
  'x-kubernetes-validations'?: { rule: string }[];
}

const leasts = ['minimum', 'minLength', 'minItems'] as const;
const mosts = ['maximum', 'maxLength', 'maxItems', 'maxProperties'] as const;
const same = ['type', 'format', 'x-kubernetes-list-type', 'x-kubernetes-list-map-keys'] as const;

/**
 * Returns the incompatibilities of the later schema, by which it would drop or reject what the earlier one accepted:
 * removed fields, changed types, narrower bounds, new required fields and rules. New rules on new fields are
 * compatible.
 */
export function incompatibilities(earlier: Schema, later: Schema, path = ''): string[] {
  const found: string[] = [];
  const report = (what: string): void => void found.push(`${path || '.'}: ${what}`);
  for (const key of same) {
    if (JSON.stringify(earlier[key]) !== JSON.stringify(later[key])) report(`${key} changed`);
  }
  for (const key of leasts) if ((later[key] ?? -Infinity) > (earlier[key] ?? -Infinity)) report(`${key} was raised`);
  for (const key of mosts) if ((later[key] ?? Infinity) < (earlier[key] ?? Infinity)) report(`${key} was lowered`);
  if (later.enum) {
    if (!earlier.enum) report('enum is new');
    for (const value of earlier.enum ?? []) if (!later.enum.includes(value)) report(`enum lost ${String(value)}`);
  }
  for (const name of later.required ?? []) {
    if (!earlier.required?.includes(name)) report(`${name} was not required`);
  }
  const rules = new Set(earlier['x-kubernetes-validations']?.map(({ rule }) => rule));
  for (const { rule } of later['x-kubernetes-validations'] ?? []) if (!rules.has(rule)) report(`new rule ${rule}`);
  for (const [name, property] of Object.entries(earlier.properties ?? {})) {
    const now = later.properties?.[name];
    if (now) found.push(...incompatibilities(property, now, `${path}.${name}`));
    else report(`${name} was removed`);
  }
  for (const [key, mark] of [
    ['items', '[]'],
    ['additionalProperties', '{}'],
  ] as const) {
    const [before, now] = [earlier[key], later[key]];
    if (before && now) found.push(...incompatibilities(before, now, `${path}${mark}`));
    else if (before) report(`${key} was removed`);
  }
  return found;
}
