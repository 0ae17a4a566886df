// As whom the document is tried, and which of its operations each caller may call. Pure.

/** What of the document matters here. */
export interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
}

interface Operation {
  readonly operationId: string;
  readonly 'x-kellet-callers'?: readonly string[];
  readonly 'x-kellet-scope'?: string;
}

/** An operation as schemathesis calls it, `GET /healthz`, and by its id. */
export interface NamedOperation {
  readonly label: string;
  readonly id: string;
  readonly operation: Operation;
}

/** The operations of a document, in its order. */
export const operationsOf = ({ paths }: Document): NamedOperation[] =>
  Object.entries(paths).flatMap(([path, item]) =>
    Object.entries(item).map(([verb, operation]) => ({
      label: `${verb.toUpperCase()} ${path}`,
      id: operation.operationId,
      operation,
    })),
  );

/** The callers of a pass each. */
export const callerNames = ['admin', 'viewer', 'device', 'platform'] as const;
export type CallerName = (typeof callerNames)[number];

const kinds: Record<CallerName, string> = {
  admin: 'user',
  viewer: 'user',
  device: 'device',
  platform: 'platform administrator',
};

/** Reports whether an operation is open to a caller; a closed one answers 403 before its request is looked at. */
export function isOpenTo(caller: CallerName, operation: Operation): boolean {
  const callers = operation['x-kellet-callers'];
  // The gateway's own routes.
  if (callers === undefined || callers.includes('anyone')) return true;
  const scope = operation['x-kellet-scope'] ?? '';
  return callers.includes(kinds[caller]) && !(caller === 'viewer' && scope.endsWith(':write'));
}
