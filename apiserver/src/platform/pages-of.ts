// Many items a page at a time, such as those that one statement writes.

/** Yields items in order, in pages of `count`; the last one may have fewer. */
export function* pagesOf<Item>(items: readonly Item[], count: number): Generator<readonly Item[]> {
  for (let first = 0; first < items.length; first += count) yield items.slice(first, first + count);
}
