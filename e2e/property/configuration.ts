// The configuration and the input document of a schemathesis run, as pure functions.
import { sampleIds } from '../../apiserver/src/openapi/sample-ids.ts';
import type { Ids } from '../fuzz/corpus.ts';
import type { Document } from './callers.ts';

/** Extent of a run. */
export interface Bounds {
  /** Generated requests per permitted operation, in addition to boundary values of each field. */
  readonly examples: number;
  /** Generated requests per denied operation: it returns 403 before validation, so a few are enough. */
  readonly closedExamples: number;
  /** Ids of the denied operations. */
  readonly closed: readonly string[];
  /** Ids of destructive operations. */
  readonly ending: readonly string[];
}

/** Probability of using a known id; otherwise it is generated or taken from earlier responses. */
const knownShare = 0.6;

const text = (value: unknown): string => JSON.stringify(value);

/** Positions of a field with this name: alone, or as an element of a list. */
const placesOf = (name: string): string[] => [
  ...['path', 'query', 'body'].map((place) => `${place}.${name}`),
  `body.${name}s[*]`,
];

const bindings = (names: readonly string[], dictionary: (name: string) => string): string[] =>
  names.flatMap((name) =>
    placesOf(name).map(
      (place) => `${text(place)} = { dictionary = ${text(dictionary(name))}, probability = ${knownShare} }`,
    ),
  );

/**
 * Returns the TOML of a run. `ids` are existing ids; `spare` contains disposable ids for destructive operations.
 */
export function configuration({ examples, closedExamples, closed, ending }: Bounds, ids: Ids, spare: Ids): string {
  const names = Object.keys(ids).sort();
  const spareNames = Object.keys(spare).sort();
  return [
    // Unimplemented methods return 501, as documented.
    '[checks]',
    'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]',
    '',
    // The hooks choose the credential; random credentials would only test authentication.
    '[auth]',
    'auto-signup = false',
    '',
    '[generation]',
    `max-examples = ${examples}`,
    'with-security-parameters = false',
    '',
    ...names.flatMap((name) => [`[dictionaries.${name}]`, `values = ${text(ids[name])}`, '']),
    ...spareNames.flatMap((name) => [`[dictionaries.spare_${name}]`, `values = ${text(spare[name])}`, '']),
    '[parameters]',
    ...bindings(names, (name) => name),
    '',
    '[[operations]]',
    `include-operation-id = ${text(closed)}`,
    `generation.max-examples = ${closedExamples}`,
    'phases.coverage.enabled = false',
    '',
    '[[operations]]',
    `include-operation-id = ${text(ending)}`,
    '[operations.parameters]',
    ...bindings(spareNames, (name) => `spare_${name}`),
    '',
  ].join('\n');
}

/**
 * Returns the document with existing ids in its examples, so that they can succeed; the operations in `ending` get
 * disposable ids.
 */
export function withIds(document: Document, ending: readonly string[], ids: Ids, spare: Ids): Document {
  const result = JSON.parse(replaceIds(JSON.stringify(document), ids)) as {
    paths: Record<string, Record<string, object>>;
  };
  for (const [path, item] of Object.entries(document.paths)) {
    for (const [verb, operation] of Object.entries(item)) {
      if (!ending.includes(operation.operationId)) continue;
      result.paths[path]![verb] = JSON.parse(replaceIds(JSON.stringify(operation), { ...ids, ...spare })) as object;
    }
  }
  return result as unknown as Document;
}

function replaceIds(json: string, ids: Ids): string {
  let result = json;
  for (const [name, sample] of Object.entries(sampleIds)) {
    const known = ids[name]?.[0];
    if (known !== undefined) result = result.replaceAll(sample, known);
  }
  return result
    .replaceAll('<PROVISION_KEY>', ids['provision_key']?.[0] ?? '')
    .replaceAll(/https:\/\/artifacts\.example\/[^"]*/g, 'upload://');
}
