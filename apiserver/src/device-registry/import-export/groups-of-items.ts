// Groups the items of a stream, for work that costs less together.

/**
 * Yields the items in groups of at most `most`. A group that is not full is yielded once this many milliseconds have
 * passed since its first item, so that a slow source does not hold it back.
 */
export async function* inGroups<T>(
  items: AsyncIterable<T>,
  most: number,
  milliseconds: number,
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
      while (group.length < most) {
        const result = await Promise.race([next, late]);
        if (result === undefined || result.done === true) break;
        group.push(result.value);
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
  const iterator = items[Symbol.asyncIterator]();
  const advance = (): Promise<IteratorResult<T>> => {
    const result = iterator.next();
    result.catch(() => undefined);
    return result;
  };
  let next = advance();
  try {
    for (let item = await next; item.done !== true; item = await next) {
      next = advance();
      yield item.value;
    }
  } finally {
    await iterator.return?.();
  }
}
