// JSON that people type. Pure.

/** Returns the value of JSON, or the text itself if it is none: `22.5` is a number, `night` a text. */
export function jsonOr(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** Returns an object, which is empty for empty text. Throws an error for the reader for anything else. */
export function jsonObject(text: string): Record<string, unknown> {
  if (text.trim() === '') return {};
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error('the parameters are not JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new Error('the parameters must be a JSON object, such as {"seconds": 5}');
  }
  return value as Record<string, unknown>;
}
