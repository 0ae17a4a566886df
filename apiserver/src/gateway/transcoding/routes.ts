// The route table, derived from the descriptors: maps a verb and a path to a method and its options.
import {
  createRegistry,
  type DescField,
  type DescFile,
  type DescMethod,
  type DescService,
  getOption,
  hasOption,
  type Registry,
} from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { http } from '@kellet/proto/es/google/api/annotations_pb';
import type { HttpRule } from '@kellet/proto/es/google/api/http_pb';
import { HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import { type Access, access } from '@kellet/proto/es/kellet/v1/options_pb';
import { capture, parseTemplate, type Template } from './path-template.ts';

/** A REST route of a method. */
export interface Route {
  readonly method: DescMethod;
  readonly access: Access;
  /** HTTP method in upper case. */
  readonly verb: string;
  /** The path template as written in the contract. */
  readonly path: string;
  readonly template: Template;
  /** The request field bound to the body, `*` for every field not in the path, or empty for no body. */
  readonly body: string;
  /** The response field that becomes the whole response; empty means all of it. */
  readonly responseBody: string;
  /** The types that a google.protobuf.Any may hold: all of the contract. */
  readonly types: Registry;
}

/** A route and the values of its path variables by field path; undefined for malformed percent-encoding. */
export interface Match {
  readonly route: Route;
  readonly variables: ReadonlyMap<string, string | undefined>;
}

/** Reading an option takes as long as everything else that a refused call costs. */
const accessByMethod = new WeakMap<DescMethod, Access>();

/** Returns the access rules of a method. Throws if it has none. */
export function accessOf(method: DescMethod): Access {
  let known = accessByMethod.get(method);
  if (!known) {
    if (!hasOption(method, access)) throw new Error(`${method.parent.typeName}.${method.name} has no kellet.v1.access`);
    accessByMethod.set(method, (known = getOption(method, access)));
  }
  return known;
}

const changingNothing = new WeakMap<DescMethod, boolean>();

/** Reports whether calls of a method change nothing that a caller has to know about: its HTTP rule, or its option, says so. */
export function changesNothing(method: DescMethod): boolean {
  let known = changingNothing.get(method);
  if (known === undefined) {
    const isGet = hasOption(method, http) && getOption(method, http).pattern.case === 'get';
    changingNothing.set(method, (known = isGet || method.idempotency === IdempotencyLevel.NO_SIDE_EFFECTS));
  }
  return known;
}

interface Node {
  readonly literals: Map<string, Node>;
  any: Node | undefined;
  /** Routes that end here, by HTTP method and verb; those of `**` are in `rest`. */
  readonly ends: Map<string, Route>;
  readonly rest: Map<string, Route>;
}

const newNode = (): Node => ({ literals: new Map(), any: undefined, ends: new Map(), rest: new Map() });
const endKey = (verb: string, customVerb: string): string => (customVerb ? `${verb}:${customVerb}` : verb);

/**
 * A trie over path segments. A literal takes precedence over `*`, and `*` over `**`; a dead end falls back to the next
 * best.
 */
export class RouteTable {
  readonly routes: readonly Route[];
  private readonly root = newNode();
  private readonly customVerbs = new Set<string>();

  /** Reads every method that has an HTTP rule. Throws if two rules have the same route. */
  constructor(services: readonly DescService[]) {
    const types = createRegistry(...withDependencies(services.map((service) => service.file)));
    this.routes = services.flatMap((service) => service.methods).flatMap((method) => routesOf(method, types));
    for (const route of this.routes) this.add(route);
  }

  private add(route: Route): void {
    let node = this.root;
    let ends = node.ends;
    for (const segment of route.template.segments) {
      if (segment.kind === 'rest') {
        ends = node.rest;
        break;
      }
      if (segment.kind === 'any') {
        node = node.any ??= newNode();
      } else {
        const text = decoded(segment.text);
        let next = node.literals.get(text);
        if (!next) node.literals.set(text, (next = newNode()));
        node = next;
      }
      ends = node.ends;
    }
    const customVerb = decoded(route.template.verb);
    const key = endKey(route.verb, customVerb);
    const taken = ends.get(key);
    if (taken) throw new Error(`${route.method.name} and ${taken.method.name} have the same route`);
    ends.set(key, route);
    if (customVerb) this.customVerbs.add(customVerb);
  }

  /**
   * Returns the route for an HTTP method and a raw path (without query), or undefined. Empty segments match nothing,
   * nor do consecutive or trailing slashes.
   */
  match(verb: string, path: string): Match | undefined {
    if (!path.startsWith('/') || path.includes('//') || (path.length > 1 && path.endsWith('/'))) return undefined;
    const segments = path === '/' ? [] : path.slice(1).split('/');
    const last = segments.at(-1) ?? '';
    const colon = last.lastIndexOf(':');
    const customVerb = colon > 0 ? decoded(last.slice(colon + 1)) : '';
    if (this.customVerbs.has(customVerb)) {
      const stripped = [...segments.slice(0, -1), last.slice(0, colon)];
      const found = this.find(this.root, stripped, 0, verb, customVerb);
      if (found) return bind(found, stripped);
    }
    const found = this.find(this.root, segments, 0, verb, '');
    return found && bind(found, segments);
  }

  private find(
    node: Node,
    segments: readonly string[],
    at: number,
    verb: string,
    customVerb: string,
  ): Route | undefined {
    if (at === segments.length) return endOf(node.ends, verb, customVerb) ?? endOf(node.rest, verb, customVerb);
    const literal = node.literals.get(decoded(segments[at]!));
    const found = literal && this.find(literal, segments, at + 1, verb, customVerb);
    if (found) return found;
    const wild = node.any && this.find(node.any, segments, at + 1, verb, customVerb);
    return wild ?? endOf(node.rest, verb, customVerb);
  }
}

/**
 * Returns the route for an HTTP method among those that end at a node; `*` stands for every method without its own
 * rule.
 */
const endOf = (ends: ReadonlyMap<string, Route>, verb: string, customVerb: string): Route | undefined =>
  ends.size === 0 ? undefined : (ends.get(endKey(verb, customVerb)) ?? ends.get(endKey('*', customVerb)));

function bind(route: Route, segments: readonly string[]): Match {
  const variables = new Map<string, string | undefined>();
  for (const variable of route.template.variables) {
    variables.set(variable.fieldPath.join('.'), capture(variable, segments));
  }
  return { route, variables };
}

/** Percent-decodes text for comparison with literals (google/api/http.proto); returns malformed text unchanged. */
function decoded(text: string): string {
  if (!text.includes('%')) return text;
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Returns files with all their imports. */
function withDependencies(files: readonly DescFile[], all = new Set<DescFile>()): DescFile[] {
  for (const file of files) {
    if (all.has(file)) continue;
    all.add(file);
    withDependencies(file.dependencies, all);
  }
  return [...all];
}

function routesOf(method: DescMethod, types: Registry): Route[] {
  if (!hasOption(method, http)) return [];
  const rule = getOption(method, http);
  const routes = [rule, ...rule.additionalBindings].map((binding) => toRoute(method, binding, types));
  if (streamsRequests(method) && !routes.every(rawBody)) {
    throw new Error(`${method.name} streams requests: HTTP rules can only stream bytes`);
  }
  return routes;
}

/** Reports whether a method takes a stream; on REST, the body is one. */
export const streamsRequests = ({ methodKind }: DescMethod): boolean =>
  methodKind === 'client_streaming' || methodKind === 'bidi_streaming';

/** Reports whether a method returns a stream; on REST, bytes (google.api.HttpBody) or a line of JSON for each message. */
export const streamsResponses = ({ methodKind }: DescMethod): boolean =>
  methodKind === 'server_streaming' || methodKind === 'bidi_streaming';

/** Where a route puts the bytes of its body: a field, or the whole request if absent. */
export interface RawBody {
  readonly field?: DescField;
}

/** Returns where the raw body goes if the route's body is a google.api.HttpBody; undefined means the body is JSON. */
export function rawBody(route: Route): RawBody | undefined {
  const { input } = route.method;
  if (route.body === '*') return input.typeName === HttpBodySchema.typeName ? {} : undefined;
  const field = input.fields.find((candidate) => candidate.name === route.body);
  return field?.fieldKind === 'message' && field.message.typeName === HttpBodySchema.typeName ? { field } : undefined;
}

function toRoute(method: DescMethod, rule: HttpRule, types: Registry): Route {
  const { pattern } = rule;
  if (pattern.case === undefined) throw new Error(`${method.name} has an HTTP rule without a pattern`);
  const [verb, path] =
    pattern.case === 'custom' ? [pattern.value.kind, pattern.value.path] : [pattern.case.toUpperCase(), pattern.value];
  const template = parseTemplate(path);
  for (const variable of template.variables) requireScalar(method, variable.fieldPath);
  if (rule.body && rule.body !== '*') requireField(method.input.fields, rule.body, method);
  if (rule.responseBody) requireField(method.output.fields, rule.responseBody, method);
  return {
    method,
    access: accessOf(method),
    verb,
    path,
    template,
    body: rule.body,
    responseBody: rule.responseBody,
    types,
  };
}

function requireField(fields: readonly DescField[], name: string, method: DescMethod): DescField {
  const field = fields.find((candidate) => candidate.name === name);
  if (!field) throw new Error(`${method.name}: its HTTP rule names ${name}, which is not a field`);
  return field;
}

function requireScalar(method: DescMethod, fieldPath: readonly string[]): void {
  let fields = method.input.fields;
  for (const [index, name] of fieldPath.entries()) {
    const field = requireField(fields, name, method);
    const isLast = index === fieldPath.length - 1;
    if (isLast ? field.fieldKind !== 'scalar' && field.fieldKind !== 'enum' : field.fieldKind !== 'message') {
      throw new Error(`${method.name}: path variable ${fieldPath.join('.')} is not a scalar`);
    }
    if (field.fieldKind === 'message') fields = field.message.fields;
  }
}
