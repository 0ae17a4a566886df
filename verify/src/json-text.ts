// Reads JSON text and refuses what JSON.parse would silently drop: a name that stands twice in one object.
import { MalformedError, messageOf } from './errors.ts';

/**
 * The value of a JSON text.
 * @throws {MalformedError} when it is no JSON, or an object in it has the same name twice
 */
export function parseJsonText(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new MalformedError(`not JSON: ${messageOf(error)}`);
  }
  const duplicate = duplicateName(text);
  if (duplicate !== undefined) throw new MalformedError(`the field ${duplicate} stands twice in one object`);
  return value;
}

/** The first repeated name in a text that is known to be JSON, as it is written there. */
function duplicateName(text: string): string | undefined {
  // One entry for each open bracket: the names so far of an object, nothing for an array.
  const open: (Set<string> | undefined)[] = [];
  let latest = '';
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:]/g)) {
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(undefined);
    else if (token === '}' || token === ']') open.pop();
    else if (token === ':') {
      const names = open.at(-1)!;
      const name = JSON.parse(latest) as string;
      if (names.has(name)) return latest;
      names.add(name);
    } else latest = token;
  }
  return undefined;
}
