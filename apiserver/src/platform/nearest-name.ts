// Finds the nearest name for a mistyped one.

/** Returns the name with the fewest changed, added, missing or swapped letters; the first of several. `names` is not empty. */
export function nearestName(given: string, names: Iterable<string>): string {
  let nearest = '';
  let least = Infinity;
  for (const name of names) {
    const distance = editDistance(given, name);
    if (distance < least) [nearest, least] = [name, distance];
  }
  return nearest;
}

/** Names are compared up to this length; the time grows with its square. */
const maximumLength = 100;

/** Returns the number of letters to change, add, remove or swap with a neighbour (optimal string alignment). */
function editDistance(left: string, right: string): number {
  const a = left.slice(0, maximumLength);
  const b = right.slice(0, maximumLength);
  let before: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const row = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const isSame = a[i - 1] === b[j - 1];
      let least = Math.min(previous[j]! + 1, row[j - 1]! + 1, previous[j - 1]! + (isSame ? 0 : 1));
      const isSwapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwapped) least = Math.min(least, before[j - 2]! + 1);
      row.push(least);
    }
    [before, previous] = [previous, row];
  }
  return previous[b.length]!;
}
