// Types of the conformance table: HTTP requests and their outcomes at the gateway.

/** A request and its outcome. */
export interface Vector {
  /** What it demonstrates; shown on the page. */
  readonly what: string;
  /** Source of the rule. */
  readonly rule: string;
  /** Method and request target, as in the request line. */
  readonly send: string;
  /** A string is sent as UTF-8, bytes unchanged. Content-Type is application/json unless the headers set it. */
  readonly body?: string | Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** The method that must be called. */
  readonly calls?: string;
  /** Its request as proto3 JSON with proto names; absent means empty. */
  readonly with?: object;
  /** The method's response as proto3 JSON; absent means empty. */
  readonly reply?: object;
  /** The body of the HTTP response: a JSON value, or raw bytes with their type. */
  readonly response?: unknown;
  /** The error: HTTP status, code, and a part of the message. */
  readonly fails?: readonly [status: number, code: string, message: string];
}

/** Vectors about one subject. */
export interface Group {
  readonly title: string;
  /** Describes the subject, and the decisions where the sources leave a choice. */
  readonly about: string;
  readonly vectors: readonly Vector[];
}

/** A raw response in a vector. */
export interface RawResponse {
  readonly contentType: string;
  readonly text: string;
}

/** The error for a malformed request. */
export const invalid = (message: string): Vector['fails'] => [400, 'INVALID_ARGUMENT', message];

/** The error for a request that matches no route. */
export const noRoute: Vector['fails'] = [404, 'NOT_FOUND', 'route not found'];
