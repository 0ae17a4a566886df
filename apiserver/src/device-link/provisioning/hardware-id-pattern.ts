// Patterns of hardware ids: `*` matches any sequence of characters, also an empty one, `?` any single character;
// everything else is literal and case-sensitive.

/**
 * Reports whether the pattern matches the whole text. Only the last `*` is ever reconsidered, so a hostile pattern
 * costs at most the product of the two lengths.
 */
export function matchesPattern(pattern: string, text: string): boolean {
  const wanted = [...pattern];
  const given = [...text];
  let at = 0;
  let star = -1;
  let resume = 0;
  for (let index = 0; index < given.length;) {
    if (at < wanted.length && wanted[at] === '*') {
      star = at;
      resume = index;
      at += 1;
    } else if (at < wanted.length && (wanted[at] === '?' || wanted[at] === given[index])) {
      at += 1;
      index += 1;
    } else if (star >= 0) {
      at = star + 1;
      resume += 1;
      index = resume;
    } else {
      return false;
    }
  }
  while (wanted[at] === '*') at += 1;
  return at === wanted.length;
}
