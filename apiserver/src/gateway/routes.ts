// The route table, read from the descriptors: which method a verb and a path mean, and what the contract says of it.
import { getOption, hasOption, type DescField, type DescMethod, type DescService } from '@bufbuild/protobuf';
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
    this.routes = services.flatMap((service) => service.methods).flatMap(routesOf);
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
        let next = node.literals.get(segment.text);
        if (!next) node.literals.set(segment.text, (next = newNode()));
        node = next;
      }
      ends = node.ends;
    }
    const key = endKey(route.verb, route.template.verb);
    const taken = ends.get(key);
    if (taken) throw new Error(`${route.method.name} and ${taken.method.name} have the same route`);
    ends.set(key, route);
    if (route.template.verb) this.customVerbs.add(route.template.verb);
  }

  /** The route of an HTTP method and a raw path (no query), or undefined: the caller answers `route not found`. */
  match(verb: string, path: string): Match | undefined {
    if (!path.startsWith('/')) return undefined;
    const segments = path.slice(1).split('/');
    const last = segments[segments.length - 1]!;
    const colon = last.lastIndexOf(':');
    if (colon >= 0 && this.customVerbs.has(last.slice(colon + 1))) {
      const stripped = [...segments.slice(0, -1), last.slice(0, colon)];
      const found = this.find(this.root, stripped, 0, endKey(verb, last.slice(colon + 1)));
      if (found) return bind(found, stripped);
    }
    const found = this.find(this.root, segments, 0, verb);
    return found && bind(found, segments);
  }

  private find(node: Node, segments: readonly string[], at: number, key: string): Route | undefined {
    if (at === segments.length) return node.ends.get(key) ?? node.rest.get(key);
    const segment = segments[at]!;
    const literal =
      node.literals.get(segment) ?? (segment.includes('%') ? node.literals.get(decoded(segment)) : undefined);
    const found = literal && this.find(literal, segments, at + 1, key);
    if (found) return found;
    if (node.any && segment !== '') {
      const wild = this.find(node.any, segments, at + 1, key);
      if (wild) return wild;
    }
    return node.rest.get(key);
  }
}

function bind(route: Route, segments: readonly string[]): Match {
  const variables = new Map<string, string | undefined>();
  for (const variable of route.template.variables) {
    variables.set(variable.fieldPath.join('.'), capture(variable, segments));
  }
  return { route, variables };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

function routesOf(method: DescMethod): Route[] {
  if (!hasOption(method, http)) return [];
  const rule = getOption(method, http);
  const routes = [rule, ...rule.additionalBindings].map((binding) => toRoute(method, binding));
  const isPossible =
    method.methodKind === 'client_streaming' ? routes.every(rawBodyField) : method.methodKind === 'unary';
  if (!isPossible) throw new Error(`${method.name} streams messages: an HTTP rule can stream bytes alone`);
  return routes;
}

/** The field that takes the body's bytes as they are, when the route's body is a google.api.HttpBody. */
export function rawBodyField(route: Route): DescField | undefined {
  if (route.body === '' || route.body === '*') return undefined;
  const field = route.method.input.fields.find((candidate) => candidate.name === route.body);
  return field?.fieldKind === 'message' && field.message.typeName === HttpBodySchema.typeName ? field : undefined;
}

function toRoute(method: DescMethod, rule: HttpRule): Route {
  const { pattern } = rule;
  if (pattern.case === undefined) throw new Error(`${method.name} has an HTTP rule without a pattern`);
  const [verb, path] =
    pattern.case === 'custom' ? [pattern.value.kind, pattern.value.path] : [pattern.case.toUpperCase(), pattern.value];
  const template = parseTemplate(path);
  for (const variable of template.variables) requireScalar(method, variable.fieldPath);
  if (rule.body && rule.body !== '*') requireField(method.input.fields, rule.body, method);
  if (rule.responseBody) requireField(method.output.fields, rule.responseBody, method);
  return { method, access: accessOf(method), verb, path, template, body: rule.body, responseBody: rule.responseBody };
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
