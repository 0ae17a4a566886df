// Base requests for mutations: a valid request to each route, with existing ids and every kind of credential.
import type { JsonObject } from '@bufbuild/protobuf';
import type { Route } from '../../apiserver/src/gateway/transcoding/routes.ts';
import { requestExamples } from '../../apiserver/src/openapi/examples.ts';
import type { Random } from './random.ts';
import type { FuzzRequest } from './request.ts';

/** Existing ids, by field name. */
export type Ids = Readonly<Record<string, readonly string[]>>;

/** A way to send a credential. */
export interface FuzzCaller {
  readonly name: string;
  /** Called for each request, because access tokens are replaced before they expire. */
  readonly headers: () => [string, string][];
}

/** The routes of the gateway itself. */
const ownRoutes: readonly [method: string, path: string, json?: unknown][] = [
  ['GET', '/healthz'],
  ['GET', '/readyz'],
  ['GET', '/api/v1/openapi.json'],
  ['POST', '/api/v1/callbacks/arc', { txid: '0'.repeat(64), txStatus: 'MINED' }],
];

/** Builds a valid request for mutation. */
export function soundRequest(
  routes: readonly Route[],
  ids: Ids,
  callers: readonly FuzzCaller[],
  random: Random,
  id: string,
): FuzzRequest {
  const caller = random.pick(callers);
  const base = { query: [], headers: caller.headers(), caller: caller.name, id };
  if (random.chance(0.03)) {
    const [method, path, json] = random.pick(ownRoutes);
    return { ...base, method, segments: path.slice(1).split('/'), json: structuredClone(json) };
  }
  const route = random.pick(routes);
  const { template, verb, body, method } = route;
  // Destructive operations get disposable ids, because the corpus needs its own objects.
  const known = /^(Delete|Rotate|Disable)/.test(method.name) ? {} : ids;
  const segments = template.segments.map((segment, index) => {
    if (segment.kind === 'literal') return segment.text;
    const variable = template.variables.find(({ start }) => start === index);
    return random.pick(known[variable?.fieldPath.at(-1) ?? ''] ?? ['unknown']);
  });
  if (template.verb) segments.push(`${segments.pop()!}:${template.verb}`);
  const json = body === '' ? undefined : exampleOf(method.name, ids, random);
  if (json !== undefined) base.headers.push(['content-type', 'application/json']);
  return { ...base, method: verb, segments, ...(json === undefined ? {} : { json }) };
}

/** Returns the documented example with existing ids, or an empty object. */
function exampleOf(method: string, ids: Ids, random: Random): JsonObject {
  const example = structuredClone(requestExamples[method] ?? {});
  // No requests to other machines.
  if ('artifact_uri' in example) example['artifact_uri'] = 'upload://';
  const replace = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return;
    for (const [key, inner] of Object.entries(value)) {
      const known = ids[key];
      if (typeof inner === 'string' && known) (value as Record<string, unknown>)[key] = random.pick(known);
      else replace(inner);
    }
  };
  replace(example);
  return example;
}
