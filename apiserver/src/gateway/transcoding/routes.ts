// The route table, read from the descriptors: which method a verb and a path mean, and what the contract says of it.
import {
  createRegistry,
  getOption,
  hasOption,
  type DescField,
  type DescFile,
  type DescMethod,
  type DescService,
  type Registry,
} from '@bufbuild/protobuf';
import { http } from '@kellet/proto/es/google/api/annotations_pb';
import type { HttpRule } from '@kellet/proto/es/google/api/http_pb';
import { HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import { access, type Access } from '@kellet/proto/es/kellet/v1/options_pb';
import { capture, parseTemplate, type Template } from './path-template.ts';

/** One way to reach a method over REST. */
export interface Route {
  readonly method: DescMethod;
  readonly access: Access;
  /** HTTP method in capitals. */
  readonly verb: string;
  /** The path template as the contract writes it. */
  readonly path: string;
  readonly template: Template;
  /** The request field that the body fills, `*` for every field not in the path, or empty for no body. */
  readonly body: string;
  /** The response field that becomes the whole answer; empty: all of it. */
  readonly responseBody: string;
  /** The types that a google.protobuf.Any may hold: all of the contract. */
  readonly types: Registry;
}

/** A route and what its path variables captured, by field path; undefined for malformed percent-encoding. */
export interface Match {
  readonly route: Route;
  readonly variables: ReadonlyMap<string, string | undefined>;
}

/** What the contract says of who may call; a method that does not say it is callable by nobody. */
export function accessOf(method: DescMethod): Access {
  if (!hasOption(method, access)) throw new Error(`${method.parent.typeName}.${method.name} has no kellet.v1.access`);
  return getOption(method, access);
}

interface Node {
  readonly literals: Map<string, Node>;
  any: Node | undefined;
  /** Routes that end here, by HTTP method and verb; those of `**` stand in `rest`. */
  readonly ends: Map<string, Route>;
  readonly rest: Map<string, Route>;
}

const newNode = (): Node => ({ literals: new Map(), any: undefined, ends: new Map(), rest: new Map() });
const endKey = (verb: string, customVerb: string): string => (customVerb ? `${verb}:${customVerb}` : verb);

/** A trie over path segments. A literal wins over `*`, and `*` over `**`; a dead end falls back to the next best. */
export class RouteTable {
  readonly routes: readonly Route[];
  private readonly root = newNode();
  private readonly customVerbs = new Set<string>();

  /** Reads every method of the services that carries an HTTP rule. Throws when two rules mean the same route. */
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
   * The route of an HTTP method and a raw path (no query), or undefined: the caller answers `route not found`. An empty segment
   * matches nothing, so neither do two slashes in a row or one at the end.
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

/** The route of an HTTP method among those that end at a node; `*` stands for every method that has no rule of its own. */
const endOf = (ends: ReadonlyMap<string, Route>, verb: string, customVerb: string): Route | undefined =>
  ends.size === 0 ? undefined : (ends.get(endKey(verb, customVerb)) ?? ends.get(endKey('*', customVerb)));

function bind(route: Route, segments: readonly string[]): Match {
  const variables = new Map<string, string | undefined>();
  for (const variable of route.template.variables) {
    variables.set(variable.fieldPath.join('.'), capture(variable, segments));
  }
  return { route, variables };
}

/** Percent-decoded, for comparing literals (google/api/http.proto); as it is when that cannot be done. */
function decoded(text: string): string {
  if (!text.includes('%')) return text;
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Files with everything they import. */
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
  const isPossible = method.methodKind === 'client_streaming' ? routes.every(rawBody) : method.methodKind === 'unary';
  if (!isPossible) throw new Error(`${method.name} streams messages: an HTTP rule can stream bytes alone`);
  return routes;
}

/** Where a route puts the bytes of its body: into a field, or (absent) they are the whole request. */
export interface RawBody {
  readonly field?: DescField;
}

/** Where the body's bytes go as they are, when the route's body is a google.api.HttpBody; undefined: the body is JSON. */
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
  if (!field) throw new Error(`${method.name}: its HTTP rule names ${name}, which is no field`);
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
