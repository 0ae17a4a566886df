// Reads JSON text and refuses what JSON.parse would silently drop: a name that stands twice in one object.
import { MalformedError, messageOf } from './errors.ts';

/** Deeper than any bundle or response; deeper texts are refused, so that whatever walks the value does not run out of stack. */
const MAXIMUM_DEPTH = 64;

/**
 * The value of a JSON text.
 * @throws {MalformedError} when it is no JSON, is nested deeper than 64 levels, or an object in it has the same name twice
 */
export function parseJsonText(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new MalformedError(`not JSON: ${messageOf(error)}`);
  }
  checkNames(text);
  return value;
}

/** Checks the depth and the names of a text that is known to be JSON. */
function checkNames(text: string): void {
  // One entry for each open bracket: the names so far of an object, nothing for an array.
  const open: (Set<string> | undefined)[] = [];
  let latest = '';
  for (let at = 0; at < text.length; at++) {
    const character = text[at]!;
    if (character === '"') {
      const end = closingQuote(text, at);
      latest = text.slice(at, end + 1);
      at = end;
    } else if (character === '{' || character === '[') {
      open.push(character === '{' ? new Set() : undefined);
      if (open.length > MAXIMUM_DEPTH) throw new MalformedError(`nested deeper than ${MAXIMUM_DEPTH} levels`);
    } else if (character === '}' || character === ']') open.pop();
    else if (character === ':') {
      const names = open.at(-1)!;
      const name = JSON.parse(latest) as string;
      if (names.has(name)) throw new MalformedError(`the field ${latest} stands twice in one object`);
      names.add(name);
    }
  }
}

/** Where the string that opens at `start` closes. */
function closingQuote(text: string, start: number): number {
  let at = start + 1;
  while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}
