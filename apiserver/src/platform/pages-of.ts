// Many items a page at a time, such as those that one statement writes.

/** Yields items in order, in pages of `count`; the last one may have fewer. */
export function* pagesOf<Item>(items: readonly Item[], count: number): Generator<readonly Item[]> {
  for (let first = 0; first < items.length; first += count) yield items.slice(first, first + count);
}

/** Yields items in order, in groups that have at most so many bytes together, or a single item. */
export function* groupsOf<Item>(
  items: readonly Item[],
  most: number,
  bytesOf: (item: Item) => number,
): Generator<readonly Item[]> {
  let group: Item[] = [];
  let bytes = 0;
  for (const item of items) {
    const itemBytes = bytesOf(item);
    if (group.length > 0 && bytes + itemBytes > most) {
      yield group;
      [group, bytes] = [[], 0];
    }
    group.push(item);
    bytes += itemBytes;
  }
  if (group.length > 0) yield group;
}
