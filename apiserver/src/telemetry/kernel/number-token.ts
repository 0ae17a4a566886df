// Finds the end of a JSON number in bytes, and whether its text is already the one that RFC 8785 prescribes.

/**
 * Returns where the number at `at` ends: positive if its text is canonical for certain, negative if only its value can tell, 0 if
 * it is not a number.
 *
 * A decimal of at most 15 significant digits is the shortest one that names its double, so String(Number(text)) returns it
 * unchanged unless it has an exponent, a zero at the end of its fraction or more than five behind the point, or a sign without
 * a value.
 */
export function endOfNumber(bytes: Uint8Array, at: number): number {
  let end = at;
  let byte = bytes[end]!;
  const isNegative = byte === 0x2d;
  if (isNegative) byte = bytes[++end]!;
  let digits = 0;
  let isCanonical = true;
  const isBelowOne = byte === 0x30;
  if (isBelowOne) {
    byte = bytes[++end]!;
    if (isDigit(byte)) return 0;
  } else {
    for (; isDigit(byte); byte = bytes[++end]!) digits += 1;
    if (digits === 0) return 0;
  }
  if (byte === 0x2e) {
    const first = end + 1;
    let significantAt = 0;
    byte = bytes[++end]!;
    for (; isDigit(byte); byte = bytes[++end]!) {
      digits += 1;
      if (significantAt === 0 && byte !== 0x30) significantAt = end;
    }
    if (end === first) return 0;
    if (bytes[end - 1] === 0x30) isCanonical = false;
    if (isBelowOne && significantAt - first > 5) isCanonical = false;
  } else if (isBelowOne && isNegative) isCanonical = false;
  if (byte === 0x65 || byte === 0x45) {
    isCanonical = false;
    byte = bytes[++end]!;
    if (byte === 0x2b || byte === 0x2d) byte = bytes[++end]!;
    if (!isDigit(byte)) return 0;
    while (isDigit(byte)) byte = bytes[++end]!;
  }
  return isCanonical && digits <= 15 ? end : -end;
}

const isDigit = (byte: number): boolean => byte >= 0x30 && byte <= 0x39;
