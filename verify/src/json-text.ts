// Parses JSON text and rejects what JSON.parse would silently drop: a repeated name in an object.
import { MalformedError, messageOf } from './errors.ts';

/**
 * Deeper than any bundle or response. Deeper texts are rejected, so that code walking the value cannot overflow the
 * stack.
 */
const MAXIMUM_DEPTH = 64;

/**
 * Parses a JSON text.
 * @throws {MalformedError} for invalid JSON, nesting deeper than 64 levels, or a repeated name in an object
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

/** Checks the depth and the names of a valid JSON text. */
function checkNames(text: string): void {
  // One entry per open bracket: the names so far for an object, undefined for an array.
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
      if (names.has(name)) throw new MalformedError(`the field ${latest} appears twice in one object`);
      names.add(name);
    }
  }
}

/** Returns the position of the quote that closes the string starting at `start`. */
function closingQuote(text: string, start: number): number {
  let at = start + 1;
  while (text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
  return at;
}
