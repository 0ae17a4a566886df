// Reads values.yaml as rows of a table: each value with its default and the comment above it.
import { isMap, isPair, isScalar, type Node, type Pair, parseDocument, stringify, type YAMLMap } from 'yaml';

/** A value of the chart. */
export interface ValueRow {
  /** Such as `apiserver.mqtt.enabled`. */
  readonly path: string;
  /** Its default as YAML in one line; empty for a group of values. */
  readonly fallback: string;
  readonly text: string;
}

/** Returns every value of a values.yaml in order; groups only if they have a comment. */
export function valueRows(source: string): ValueRow[] {
  const { contents } = parseDocument(source);
  if (!isMap(contents)) throw new Error('values.yaml is not a map');
  return rowsOf(contents, '');
}

function rowsOf(map: YAMLMap, prefix: string): ValueRow[] {
  return map.items.flatMap((pair, index) => {
    if (!isPair(pair) || !isScalar(pair.key)) throw new Error(`${prefix}: a key is not plain`);
    const path = `${prefix}${String(pair.key.value)}`;
    const value = pair.value as Node;
    // A comment before the first key of a map belongs to the map.
    const comment = (index === 0 ? map.commentBefore : undefined) ?? pair.key.commentBefore;
    const text = textOf(comment);
    if (!isGroup(pair)) return [{ path, fallback: inline(value), text }];
    return [...(text === '' ? [] : [{ path, fallback: '', text }]), ...rowsOf(value as YAMLMap, `${path}.`)];
  });
}

/** A map is a group unless it is empty or written in one line, which is a default of its own. */
const isGroup = ({ value }: Pair): boolean => isMap(value) && value.items.length > 0 && !value.flow;

const inline = (value: Node): string => stringify(value.toJSON(), { collectionStyle: 'flow', lineWidth: 0 }).trim();

/** Joins the lines of the last paragraph of a comment: an earlier one is about the file. */
const textOf = (comment: string | null | undefined): string =>
  (comment ?? '')
    .split(/\n\s*\n/)
    .at(-1)!
    .split('\n')
    .map((line) => line.trim())
    .join(' ')
    .replaceAll('|', '\\|')
    .trim();
