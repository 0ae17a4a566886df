// The configuration of one schemathesis run, and the document that it reads. Pure.
import { sampleIds } from '../../apiserver/src/openapi/sample-ids.ts';
import type { Ids } from '../fuzz/corpus.ts';
import type { Document } from './callers.ts';

/** How much is asked. */
export interface Bounds {
  /** Generated requests to an operation that the caller may call; beside them each limit of each field is tried once. */
  readonly examples: number;
  /** To one that is closed to the caller: it answers 403 before the request is looked at, so that a few tell all. */
  readonly closedExamples: number;
  /** Ids of the closed operations. */
  readonly closed: readonly string[];
  /** Ids of the operations that end what they are asked of. */
  readonly ending: readonly string[];
}

/** How often a known id stands where one is wanted; the rest is generated, or comes from earlier answers. */
const knownShare = 0.6;

const text = (value: unknown): string => JSON.stringify(value);

/** Where a field of this name may stand: alone, or as an element of a list. */
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
 * The TOML of a run. `ids` are of things that exist; `spare`, of which an operation that ends something is told instead, may be
 * gone afterwards.
 */
export function configuration({ examples, closedExamples, closed, ending }: Bounds, ids: Ids, spare: Ids): string {
  const names = Object.keys(ids).sort();
  const spareNames = Object.keys(spare).sort();
  return [
    // Methods that an installation does not serve answer 501, as the document says.
    '[checks]',
    'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]',
    '',
    // The hooks choose the credential: none is looked for, and none is made up at random, which would test the door alone.
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
 * The document with things that exist in its examples, which are then requests that can succeed; in those of the operations
 * named in `ending`, things that may be gone afterwards.
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
