// Functions of expressions that would take far longer for long texts than the steps that they are estimated at.
import { celEnv, type CelFunc, celFunc, celMethod, CelScalar, isCelError } from '@bufbuild/cel';

/** Longest text that is converted to a number or a time; the library has the same limit for durations. */
const maxConverted = 128;

/** Longest result of joining bytes, which are copied. */
const maxJoinedBytes = 16_384;

/** Up to this length the engine's own search takes linear time: its tables are for the last 250 characters. */
const plainSearch = 200;

const { BOOL, BYTES, INT, STRING } = CelScalar;
const library = [...celEnv().funcs];

/** The functions, which replace those of the library. */
export const boundedFunctions: readonly CelFunc[] = [
  ...['int', 'uint', 'double', 'timestamp'].map((name) => conversion(`${name}(string)`)),
  celFunc('_+_', [BYTES, BYTES], BYTES, joinBytes),
  celMethod('contains', STRING, [STRING], BOOL, function (text) {
    return containsText(this, text);
  }),
  celFunc('size', [STRING], INT, characters),
  celMethod('size', STRING, [], INT, function () {
    return characters(this);
  }),
];

/** Returns a conversion of the library that refuses long texts. */
function conversion(id: string): CelFunc {
  const found = library.find((one) => one.id === id);
  if (!found) throw new Error(`the library has no function ${id}`);
  return celFunc(found.name, [STRING], found.result, (text) => {
    if (text.length > maxConverted) throw new Error(`a text of more than ${maxConverted} characters is not converted`);
    const result = found.call(0, undefined, [text]);
    if (isCelError(result)) throw new Error(result.message);
    return result as never;
  });
}

function joinBytes(one: Uint8Array, other: Uint8Array): Uint8Array {
  if (one.length + other.length > maxJoinedBytes) throw new Error(`bytes have at most ${maxJoinedBytes}`);
  const joined = new Uint8Array(one.length + other.length);
  joined.set(one);
  joined.set(other, one.length);
  return joined;
}

/** Returns the number of characters of a text. The library makes a list of them. */
function characters(text: string): bigint {
  let count = 0;
  for (let index = 0; index < text.length; index += text.codePointAt(index)! > 0xffff ? 2 : 1) count += 1;
  return BigInt(count);
}

/** As String.prototype.includes, which takes the product of both lengths for some long parts; this takes their sum. */
export function containsText(text: string, part: string): boolean {
  if (part.length <= plainSearch) return text.includes(part);
  if (part.length > text.length) return false;
  // Knuth, Morris and Pratt: the length of the longest border of each beginning of the part.
  const borders = new Uint32Array(part.length);
  for (let index = 1, matched = 0; index < part.length; index += 1) {
    while (matched > 0 && part.charCodeAt(index) !== part.charCodeAt(matched)) matched = borders[matched - 1]!;
    if (part.charCodeAt(index) === part.charCodeAt(matched)) matched += 1;
    borders[index] = matched;
  }
  for (let index = 0, matched = 0; index < text.length; index += 1) {
    while (matched > 0 && text.charCodeAt(index) !== part.charCodeAt(matched)) matched = borders[matched - 1]!;
    if (text.charCodeAt(index) === part.charCodeAt(matched)) matched += 1;
    if (matched === part.length) return true;
  }
  return false;
}
