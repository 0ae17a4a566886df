// The configuration file: YAML or JSON, one key for each setting. Never quotes values, which may be secrets.
import { readFileSync } from 'node:fs';
import { isMap, isScalar, isSeq, parseDocument } from 'yaml';
import { nearestName } from '../platform/nearest-name.ts';
import { shorten } from '../platform/shorten.ts';

/** The values in a file by key, and what is wrong with the file. */
export interface ConfigFile {
  readonly values: ReadonlyMap<string, string>;
  readonly problems: readonly string[];
}

const longestKey = 60;

/** Reads a file. `keys` are the keys that may occur in it. */
export function readConfigFile(path: string, keys: ReadonlySet<string>): ConfigFile {
  try {
    return parseConfigFile(path, readFileSync(path, 'utf8'), keys);
  } catch (error) {
    return { values: new Map(), problems: [`${path}: ${(error as Error).message}`] };
  }
}

/** Parses the text of a file. */
function parseConfigFile(path: string, text: string, keys: ReadonlySet<string>): ConfigFile {
  // In the failsafe schema every scalar is the text that was written: no digit of a key or a password is lost.
  const document = parseDocument(text, { schema: 'failsafe', prettyErrors: false, logLevel: 'error' });
  const [error] = document.errors;
  if (error) {
    const { line, column } = placeOf(text, error.pos[0]);
    const what = error.code === 'DUPLICATE_KEY' ? 'the key occurs twice' : `not valid YAML (${error.code})`;
    return { values: new Map(), problems: [`${path}: line ${line}, column ${column}: ${what}`] };
  }
  if (document.contents === null) return { values: new Map(), problems: [] };
  if (!isMap(document.contents)) {
    return { values: new Map(), problems: [`${path}: must consist of keys and values, such as restPort: 8080`] };
  }
  const values = new Map<string, string>();
  const problems: string[] = [];
  for (const { key, value } of document.contents.items) {
    const name = isScalar(key) ? String(key.value) : '';
    const given = textOf(value);
    if (!keys.has(name)) {
      problems.push(`${path}: unknown key ${shorten(name, longestKey)}; did you mean ${nearestName(name, keys)}?`);
    } else if (given === undefined) problems.push(`${path}: ${name} must be a text, a number, true, false or a list`);
    else values.set(name, given);
  }
  return { values, problems };
}

/** Returns the text of a scalar, or those of a list separated by commas; undefined for any other value. */
function textOf(node: unknown): string | undefined {
  if (isSeq(node)) {
    const texts = node.items.map(scalarText);
    return texts.includes(undefined) ? undefined : texts.join(',');
  }
  return scalarText(node);
}

function scalarText(node: unknown): string | undefined {
  if (!isScalar(node) || typeof node.value !== 'string') return undefined;
  const isNull = node.type === 'PLAIN' && /^(null|~|)$/i.test(node.value);
  return isNull ? undefined : node.value;
}

function placeOf(text: string, offset: number): { line: number; column: number } {
  const lines = text.slice(0, offset).split('\n');
  return { line: lines.length, column: lines.at(-1)!.length + 1 };
}
