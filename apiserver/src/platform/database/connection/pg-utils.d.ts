// The part of pg that converts values to parameters, missing from its types.
declare module 'pg/lib/utils.js' {
  /** Returns a parameter in protocol form: text, or bytes for binary data. */
  export function prepareValue(value: unknown): Buffer | string | null;
}
