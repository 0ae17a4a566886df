// Semantic versions (SemVer 2.0.0) as packages and devices carry them.

const pattern =
  /^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?$/;

/** Reports whether the text is a semantic version. */
export const isVersion = (text: string): boolean => pattern.test(text);

/**
 * Compares two versions by SemVer's precedence: negative, 0 or positive. A text that is no version is less than every
 * version, so that a device that has never reported one is older than everything.
 */
export function compareVersions(left: string, right: string): number {
  const a = pattern.exec(left);
  const b = pattern.exec(right);
  if (!a || !b) return (a ? 1 : 0) - (b ? 1 : 0);
  for (const part of [1, 2, 3]) {
    const difference = compareNumeric(a[part]!, b[part]!);
    if (difference !== 0) return difference;
  }
  return comparePrerelease(a[4], b[4]);
}

/** Compares numbers without leading zeros: the longer is greater. */
function compareNumeric(left: string, right: string): number {
  return left.length - right.length || (left < right ? -1 : left > right ? 1 : 0);
}

function comparePrerelease(left: string | undefined, right: string | undefined): number {
  if (left === undefined || right === undefined) return (left === undefined ? 1 : 0) - (right === undefined ? 1 : 0);
  const a = left.split('.');
  const b = right.split('.');
  for (let index = 0; index < Math.min(a.length, b.length); index += 1) {
    const difference = compareIdentifier(a[index]!, b[index]!);
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}

function compareIdentifier(left: string, right: string): number {
  const numericLeft = /^\d+$/.test(left);
  const numericRight = /^\d+$/.test(right);
  if (numericLeft && numericRight) return compareNumeric(left, right);
  if (numericLeft !== numericRight) return numericLeft ? -1 : 1;
  return left < right ? -1 : left > right ? 1 : 0;
}
