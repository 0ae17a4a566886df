// The callers of property tests, and the operations that each may call.

/** The relevant part of the document. */
export interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
}

interface Operation {
  readonly operationId: string;
  readonly 'x-kellet-callers'?: readonly string[];
  readonly 'x-kellet-scope'?: string;
}

/** An operation by its schemathesis label, such as `GET /healthz`, and its id. */
export interface NamedOperation {
  readonly label: string;
  readonly id: string;
  readonly operation: Operation;
}

/** Returns the operations of a document, in order. */
export const operationsOf = ({ paths }: Document): NamedOperation[] =>
  Object.entries(paths).flatMap(([path, item]) =>
    Object.entries(item).map(([verb, operation]) => ({
      label: `${verb.toUpperCase()} ${path}`,
      id: operation.operationId,
      operation,
    })),
  );

/** Callers, each with a separate pass. */
export const callerNames = ['admin', 'viewer', 'device', 'platform'] as const;
export type CallerName = (typeof callerNames)[number];

const kinds: Record<CallerName, string> = {
  admin: 'user',
  viewer: 'user',
  device: 'device',
  platform: 'platform administrator',
};

/** Reports whether a caller may call an operation. Others return 403 before the request is validated. */
export function isOpenTo(caller: CallerName, operation: Operation): boolean {
  const callers = operation['x-kellet-callers'];
  // The gateway's own routes.
  if (callers === undefined || callers.includes('anyone')) return true;
  const scope = operation['x-kellet-scope'] ?? '';
  return callers.includes(kinds[caller]) && !(caller === 'viewer' && scope.endsWith(':write'));
}
