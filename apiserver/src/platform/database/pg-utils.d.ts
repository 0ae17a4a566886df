// The part of pg that turns values into parameters, which its types leave out.
declare module 'pg/lib/utils.js' {
  /** A parameter as the protocol takes it: text, or bytes for binary data. */
  export function prepareValue(value: unknown): Buffer | string | null;
}
