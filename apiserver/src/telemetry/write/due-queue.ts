// A queue by time: a binary heap.

/** Items by when they are due. */
export class DueQueue<T> {
  private readonly heap: { readonly at: number; readonly item: T }[] = [];

  /** The item that is due first and when, or undefined. */
  get first(): { readonly at: number; readonly item: T } | undefined {
    return this.heap[0];
  }

  get size(): number {
    return this.heap.length;
  }

  add(at: number, item: T): void {
    const { heap } = this;
    let index = heap.length;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (heap[parent]!.at <= at) break;
      heap[index] = heap[parent]!;
      index = parent;
    }
    heap[index] = { at, item };
  }

  removeFirst(): void {
    const { heap } = this;
    const last = heap.pop();
    if (!last || heap.length === 0) return;
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && heap[child + 1]!.at < heap[child]!.at) child += 1;
      if (heap[child]!.at >= last.at) break;
      heap[index] = heap[child]!;
      index = child;
    }
    heap[index] = last;
  }
}
