// The shape of the conformance table: HTTP requests, and what becomes of them at the gateway.

/** A request and what the gateway makes of it. */
export interface Vector {
  /** What it shows, as the page says it. */
  readonly what: string;
  /** Where the rule comes from. */
  readonly rule: string;
  /** Method and request target, as they stand in the request line. */
  readonly send: string;
  /** Sent as UTF-8; bytes as they are. Content-Type is application/json unless the headers say otherwise. */
  readonly body?: string | Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** The method that is called. */
  readonly calls?: string;
  /** Its request in proto3 JSON with proto names; absent: an empty one. */
  readonly with?: object;
  /** What the method answers, in proto3 JSON; absent: an empty message. */
  readonly reply?: object;
  /** The body of the answer: a JSON value, or raw bytes with their type. */
  readonly answers?: unknown;
  /** The refusal: HTTP status, code, and a part of the message. */
  readonly fails?: readonly [status: number, code: string, message: string];
}

/** Vectors about one subject. */
export interface Group {
  readonly title: string;
  /** What the subject is about, and what was decided where the sources leave it open. */
  readonly about: string;
  readonly vectors: readonly Vector[];
}

/** A raw answer in a vector. */
export interface RawAnswer {
  readonly contentType: string;
  readonly text: string;
}

/** A request that is refused as malformed. */
export const invalid = (message: string): Vector['fails'] => [400, 'INVALID_ARGUMENT', message];

/** A request that no route matches (SPEC, Errors, case rule 1). */
export const noRoute: Vector['fails'] = [404, 'NOT_FOUND', 'route not found'];
