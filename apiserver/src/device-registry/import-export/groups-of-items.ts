// Groups the items of a stream, for work that costs less together.

/** When a group is full. */
export interface GroupLimits<T> {
  readonly items: number;
  /** How long its first item waits, so that a slow source does not hold it back. */
  readonly milliseconds: number;
  /** Its bytes, of which the last item may exceed them. */
  readonly bytes?: number;
  readonly bytesOf?: (item: T) => number;
}

/** Yields the items in groups. */
export async function* inGroups<T>(
  items: AsyncIterable<T>,
  { items: most, milliseconds, bytes: mostBytes = Infinity, bytesOf = () => 0 }: GroupLimits<T>,
): AsyncGenerator<readonly T[]> {
  const iterator = items[Symbol.asyncIterator]();
  const advance = (): Promise<IteratorResult<T>> => {
    const result = iterator.next();
    // A failure while a group is being processed is thrown when the next one is requested.
    result.catch(() => undefined);
    return result;
  };
  let next = advance();
  try {
    for (let first = await next; first.done !== true; first = await next) {
      const group = [first.value];
      next = advance();
      let timer: NodeJS.Timeout | undefined;
      const late = new Promise<undefined>((resolve) => {
        timer = setTimeout(resolve, milliseconds, undefined);
      });
      let bytes = bytesOf(first.value);
      while (group.length < most && bytes < mostBytes) {
        const result = await Promise.race([next, late]);
        if (result === undefined || result.done === true) break;
        group.push(result.value);
        bytes += bytesOf(result.value);
        next = advance();
      }
      clearTimeout(timer);
      yield group;
    }
  } finally {
    await iterator.return?.();
  }
}

/** Yields the items, requesting the next one while an item is being processed. */
export async function* readAhead<T>(items: AsyncIterable<T>): AsyncGenerator<T> {
  for await (const [item] of inGroups(items, { items: 1, milliseconds: 0 })) yield item!;
}
