// The canonical payload of a point (RFC 8785), written directly: about a third of the cost of the general canonicalizer,
// whose bytes it equals (payload.test.ts compares them over generated values).

/** The values of a point as a request gives them. */
export interface PointValues {
  readonly numericValues: Readonly<Record<string, number>>;
  readonly stringValues: Readonly<Record<string, string>>;
}

/** Text that stands in JSON as it is. */
const plainText = /^[\x20\x21\x23-\x5b\x5d-\x7e]*$/;

const quote = (text: string): string => (plainText.test(text) ? `"${text}"` : JSON.stringify(text));

// Names repeat from point to point. The table is emptied when it has grown beyond what one fleet's names need.
const maximumQuotedNames = 20_000;
const quotedNames = new Map<string, string>();

function quoteName(name: string): string {
  let quoted = quotedNames.get(name);
  if (quoted === undefined) {
    quoted = `${quote(name)}:`;
    if (quotedNames.size >= maximumQuotedNames) quotedNames.clear();
    quotedNames.set(name, quoted);
  }
  return quoted;
}

/** RFC 8785 orders names by UTF-16 code units, as comparison of JavaScript strings does. */
function sortedNames(values: object): string[] {
  const names = Object.keys(values);
  for (let index = 1; index < names.length; index += 1) {
    if (names[index - 1]! > names[index]!) return names.sort();
  }
  return names;
}

/**
 * The payload text `{"numeric_values":{…},"string_values":{…}}` of values that are finite numbers and well-formed strings
 * (validatePoint has seen to that).
 */
export function writePayload(values: PointValues): string {
  let text = '{"numeric_values":{';
  let separator = '';
  for (const name of sortedNames(values.numericValues)) {
    // String(-0) is "0", and every other number is written as RFC 8785 asks.
    text += `${separator}${quoteName(name)}${values.numericValues[name]!}`;
    separator = ',';
  }
  text += '},"string_values":{';
  separator = '';
  for (const name of sortedNames(values.stringValues)) {
    text += `${separator}${quoteName(name)}${quote(values.stringValues[name]!)}`;
    separator = ',';
  }
  return `${text}}}`;
}
