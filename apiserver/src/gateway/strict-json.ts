// JSON as the contract wants it: JSON.parse, and beyond it no duplicate keys, no NUL, no broken surrogates, bounded depth.
import { isUtf8 } from 'node:buffer';
import type { JsonValue } from '@bufbuild/protobuf';
import { invalidArgument } from '../platform/errors.ts';

/** Objects and arrays within one another; the message decoder has the same bound. */
const maximumDepth = 100;

const quote = 0x22;
const comma = 0x2c;
const colon = 0x3a;
const openBracket = 0x5b;
const backslash = 0x5c;
const closeBracket = 0x5d;
const openBrace = 0x7b;
const closeBrace = 0x7d;

/** Parses a request body. Throws INVALID_ARGUMENT for anything but one well-formed JSON value in UTF-8. */
export function parseStrictJson(body: Uint8Array): JsonValue {
  if (!isUtf8(body)) throw invalidArgument('the body is not valid UTF-8');
  const text = Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8');
  let value: JsonValue;
  try {
    value = JSON.parse(text) as JsonValue;
  } catch {
    throw invalidArgument('the body is not valid JSON');
  }
  // Measured on telemetry (100 points, 23 kB): 1 µs a point this way, 15 µs when every token is looked at.
  if (text.includes('\\') || countKeyTokens(text) !== countKeys(value, maximumDepth)) checkTokens(text);
  return value;
}

/** Strings that a colon follows, in a text that JSON.parse has accepted and that has no escapes. */
function countKeyTokens(text: string): number {
  let keys = 0;
  for (let open = text.indexOf('"'); open >= 0;) {
    const close = text.indexOf('"', open + 1);
    let next = close + 1;
    // JSON's white space is everything below the exclamation mark that may stand here.
    while (text.charCodeAt(next) <= 0x20) next += 1;
    if (text.charCodeAt(next) === colon) keys += 1;
    open = text.indexOf('"', next);
  }
  return keys;
}

/** Keys of all objects in the value, of which a repeated one counts once; NaN when it is nested deeper than allowed. */
function countKeys(value: JsonValue, depth: number): number {
  if (typeof value !== 'object' || value === null) return 0;
  if (depth === 0) return NaN;
  let keys = 0;
  if (Array.isArray(value)) {
    for (const item of value) keys += countKeys(item, depth - 1);
    return keys;
  }
  for (const key of Object.keys(value)) {
    keys += 1;
    const field = value[key]!;
    if (typeof field === 'object') keys += countKeys(field, depth - 1);
  }
  return keys;
}

/**
 * Looks at each token of a text that JSON.parse has accepted, for what it lets pass. One pass over character codes; key sets
 * are reused per depth, because most requests are arrays of small objects.
 */
function checkTokens(text: string): void {
  const keySets: Set<string>[] = [];
  const isObject: boolean[] = [];
  const hasEscapes = text.includes('\\');
  let depth = 0;
  let expectKey = false;
  for (let at = 0; at < text.length; at += 1) {
    switch (text.charCodeAt(at)) {
      case openBrace:
      case openBracket: {
        if (depth === maximumDepth) throw invalidArgument(`the body is nested deeper than ${maximumDepth}`);
        expectKey = text.charCodeAt(at) === openBrace;
        isObject[depth] = expectKey;
        if (expectKey) (keySets[depth] ??= new Set()).clear();
        depth += 1;
        break;
      }
      case closeBrace:
      case closeBracket:
        depth -= 1;
        expectKey = false;
        break;
      case comma:
        expectKey = isObject[depth - 1] === true;
        break;
      case colon:
        expectKey = false;
        break;
      case quote: {
        const close = closingQuote(text, at);
        const raw = text.slice(at + 1, close);
        const string = hasEscapes && raw.includes('\\') ? unescape(raw) : raw;
        if (expectKey) {
          const seen = keySets[depth - 1]!;
          if (seen.has(string)) throw invalidArgument(`the key ${JSON.stringify(string)} appears twice`);
          seen.add(string);
        }
        at = close;
        break;
      }
    }
  }
}

function closingQuote(text: string, open: number): number {
  for (let close = text.indexOf('"', open + 1); ; close = text.indexOf('"', close + 1)) {
    let slashes = 0;
    while (text.charCodeAt(close - 1 - slashes) === backslash) slashes += 1;
    if (slashes % 2 === 0) return close;
  }
}

function unescape(raw: string): string {
  const string = JSON.parse(`"${raw}"`) as string;
  checkText(string);
  return string;
}

/** Refuses text that PostgreSQL cannot hold (NUL) or that is no Unicode text (a surrogate alone). */
export function checkText(text: string): void {
  if (text.includes('\0')) throw invalidArgument('text must not contain NUL');
  if (!text.isWellFormed()) throw invalidArgument('text must be well-formed Unicode');
}
