// Decides what an update changes in the attributes of one scope, and whether the result is within the limits.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject, JsonValue } from '@bufbuild/protobuf';
import { failedPrecondition, invalidArgument } from '../../platform/errors.ts';
import { freeJsonField, textField } from '../../platform/requests/fields.ts';

/** Scope of an attribute: which side writes and reads it. */
export type AttributeScope = 'client' | 'server' | 'shared';

/** The scopes. */
export const attributeScopes: readonly AttributeScope[] = ['client', 'server', 'shared'];

/** An attribute as stored. */
export interface StoredAttribute {
  /** Any value but null. */
  readonly value: JsonValue;
  /** Milliseconds since 1970. */
  readonly updated_at: number;
}

/** The attributes of one scope by name. */
export type StoredAttributes = Readonly<Record<string, StoredAttribute>>;

/** What an update changed, in the form in which devices and events get it. */
export interface AttributeDelta {
  readonly changed: JsonObject;
  readonly removed: readonly string[];
}

/** Limits on the attributes of one scope. */
export const attributeLimits = {
  names: 256,
  nameCharacters: 128,
  valueBytes: 16 * 1024,
  /** Of all names and values together, as JSON. */
  scopeBytes: 64 * 1024,
} as const;

/** Checks an update by itself. Throws INVALID_ARGUMENT naming the attribute. */
export function checkUpdate(scope: AttributeScope, update: JsonObject): void {
  const names = Object.keys(update);
  if (names.length > attributeLimits.names) {
    throw invalidArgument(`${scope} must have at most ${attributeLimits.names} attributes`);
  }
  for (const name of names) {
    textField(`${scope}: the name of an attribute`, name, { minimum: 1, maximum: attributeLimits.nameCharacters });
    freeJsonField(`${scope}[${JSON.stringify(name)}]`, update[name]!, attributeLimits.valueBytes);
  }
  freeJsonField(scope, update, attributeLimits.scopeBytes);
}

/**
 * Returns the attributes after an update, in which null removes a name, and the difference. Returns undefined if nothing
 * changes; an attribute that is set to the value it has keeps its time. Throws FAILED_PRECONDITION if the scope would
 * exceed its limits.
 */
export function applyUpdate(
  scope: AttributeScope,
  stored: StoredAttributes,
  update: JsonObject,
  now: number,
): { attributes: StoredAttributes; delta: AttributeDelta } | undefined {
  const attributes = new Map(Object.entries(stored));
  const changed: [string, JsonValue][] = [];
  const removed: string[] = [];
  for (const [name, value] of Object.entries(update)) {
    if (value === null) {
      if (attributes.delete(name)) removed.push(name);
    } else if (!isDeepStrictEqual(attributes.get(name)?.value, value)) {
      attributes.set(name, { value, updated_at: now });
      changed.push([name, value]);
    }
  }
  if (changed.length + removed.length === 0) return undefined;
  // What only shrinks is accepted even above a limit.
  if (changed.length > 0) checkTotal(scope, attributes);
  return {
    attributes: Object.fromEntries(attributes),
    delta: { changed: Object.fromEntries(changed), removed },
  };
}

function checkTotal(scope: AttributeScope, attributes: ReadonlyMap<string, StoredAttribute>): void {
  if (attributes.size > attributeLimits.names) {
    throw failedPrecondition(`${scope}: a device has at most ${attributeLimits.names} attributes, remove some first`);
  }
  const values = Object.fromEntries([...attributes].map(([name, { value }]) => [name, value]));
  if (Buffer.byteLength(JSON.stringify(values)) > attributeLimits.scopeBytes) {
    throw failedPrecondition(
      `${scope}: the attributes of a device take at most ${attributeLimits.scopeBytes} bytes, remove some first`,
    );
  }
}
