// Many items a page at a time, such as those that one statement writes.

/** Yields items in order, in pages of `count`; the last one may have fewer. */
export function* pagesOf<Item>(items: readonly Item[], count: number): Generator<readonly Item[]> {
  for (let first = 0; first < items.length; first += count) yield items.slice(first, first + count);
}

/** Yields items in order, in pages that have at most so many bytes together, or a single item. */
export function* pagesOfBytes<Item>(
  items: readonly Item[],
  most: number,
  bytesOf: (item: Item) => number,
): Generator<readonly Item[]> {
  let page: Item[] = [];
  let bytes = 0;
  for (const item of items) {
    const itemBytes = bytesOf(item);
    if (page.length > 0 && bytes + itemBytes > most) {
      yield page;
      [page, bytes] = [[], 0];
    }
    page.push(item);
    bytes += itemBytes;
  }
  if (page.length > 0) yield page;
}
