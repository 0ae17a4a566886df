// Which calls the audit log records, and on what they act: derived from the contract, so that a new call is recorded without
// code for it.
import type { DescMethod } from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { Access_Caller } from '@kellet/proto/es/kellet/v1/options_pb';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { storedId } from '../../platform/ids.ts';
import type { Caller } from '../../platform/rpc.ts';
import type { Route, RouteTable } from '../transcoding/routes.ts';

/** What a call acts on. */
export interface ResourceRef {
  readonly kind: string;
  readonly id: string;
}

/** A request or response, by local field names. */
type Fields = Readonly<Record<string, unknown>>;

/** How the calls of a method are recorded. */
export interface AuditedMethod {
  /** `Service/Method`. */
  readonly action: string;
  /** Returns what a call acted on; `response` is undefined if there is none. */
  resourceOf(request: object, response: object | undefined, caller: Caller): ResourceRef;
}

const { changePassword, logout, logoutSso, revokeAllSessions, updateOwnTenant, deleteLockout } = AuthService.method;
/** Calls on the caller's own second factors. */
const factorsPath = '/api/v1/auth/mfa';
const ofCaller = (_: Fields, caller: Caller): ResourceRef => ({ kind: 'user', id: caller.userId });

const ofSession = (_: Fields, caller: Caller): ResourceRef => ({ kind: 'session', id: caller.sessionId });

/** Methods whose path does not say what they act on, or not in one spelling. */
const special = new Map<DescMethod, (request: Fields, caller: Caller) => ResourceRef>([
  [logout, ofSession],
  [logoutSso, ofSession],
  [revokeAllSessions, (request, caller) => ({ kind: 'user', id: textOf(request['userId']) || caller.userId })],
  // As failed sign-ins are counted, however the call spells the address.
  [deleteLockout, ({ email }) => ({ kind: 'lockout', id: textOf(email).trim().toLowerCase() })],
  [updateOwnTenant, (_, caller) => ({ kind: 'tenant', id: caller.tenantId })],
  [changePassword, ofCaller],
]);

/**
 * Reports whether calls of a route change something and are recorded by the gateway. Not recorded are telemetry and what
 * devices do. Calls without a credential are recorded by the services that find out who makes them (sign-ins, claims).
 */
export function isAudited({ verb, method, access }: Route): boolean {
  if (verb === 'GET' || method.idempotency === IdempotencyLevel.NO_SIDE_EFFECTS) return false;
  if (method.parent.typeName === TelemetryService.typeName) return false;
  return access.callers.some((caller) => caller !== Access_Caller.PUBLIC && caller !== Access_Caller.DEVICE);
}

/**
 * Returns how the calls of a contract are recorded: those that change something, and those of all other methods if they are
 * refused. A method whose path names no collection acts on something unnamed.
 */
export function auditedMethods({ routes }: RouteTable): {
  readonly changing: ReadonlyMap<DescMethod, AuditedMethod>;
  readonly others: ReadonlyMap<DescMethod, AuditedMethod>;
} {
  const items = itemsOf(routes);
  const described = (some: readonly Route[]) =>
    new Map(some.map((route) => [route.method, auditedMethod(route, items)]));
  const { changing = [], others = [] } = Object.groupBy(routes, (route) => (isAudited(route) ? 'changing' : 'others'));
  return { changing: described(changing), others: described(others) };
}

function auditedMethod(route: Route, items: ReadonlyMap<string, string>): AuditedMethod {
  const { method, path } = route;
  const action = `${method.parent.name}/${method.name}`;
  const own = special.get(method) ?? (path.startsWith(factorsPath) ? ofCaller : undefined);
  if (own) return { action, resourceOf: (request, _, caller) => own(request as Fields, caller) };
  const collection = collectionOf(path, items);
  if (collection === undefined) return { action, resourceOf: () => ({ kind: '', id: '' }) };
  const kind = kindOf(collection);
  const field = localName(items.get(collection)!);
  const isNamed = path.startsWith(`${collection}/{`);
  const resourceOf = (request: object, response: object | undefined): ResourceRef => {
    if (isNamed) return { kind, id: textOf((request as Fields)[field]) };
    // The caller chooses the ids of some items, such as tenants, which tells what failed.
    return { kind, id: idIn((response ?? request) as Fields, field, kind) };
  };
  return { action, resourceOf };
}

/** Returns the paths of collections, each with the variable that names an item. */
function itemsOf(routes: readonly Route[]): ReadonlyMap<string, string> {
  return new Map(
    routes.flatMap(({ path }) => {
      const [, collection, variable] = /^([^{]*)\/\{(\w+)\}/.exec(path) ?? [];
      return collection === undefined ? [] : [[collection, variable!] as const];
    }),
  );
}

/** Returns the collection in which a path begins, such as that of devices for `devices/import`. */
function collectionOf(path: string, items: ReadonlyMap<string, string>): string | undefined {
  for (let start = path.replace(/(\/\{|:).*/, ''); start !== ''; start = start.slice(0, start.lastIndexOf('/'))) {
    if (items.has(start)) return start;
  }
  return undefined;
}

/** `/api/v1/device-groups` → `device_group`. */
const kindOf = (collection: string): string =>
  collection
    .slice(collection.lastIndexOf('/') + 1)
    .replaceAll('-', '_')
    .replace(/s$/, '');

/** Returns the local name of a field, as used in messages. */
export const localName = (field: string): string =>
  field.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());

/** Returns the id of a created item: a field of the message, or of the item in it. */
function idIn(message: Fields, field: string, kind: string): string {
  const item = message[localName(kind)];
  return textOf(message[field]) || (typeof item === 'object' && item !== null ? textOf((item as Fields)[field]) : '');
}

/** Returns a field of a request or response. Whoever asks for the events of an id must find those of calls that spell it in capitals. */
const textOf = (value: unknown): string => (typeof value === 'string' ? storedId(value) : '');
