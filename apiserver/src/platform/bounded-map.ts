// A map that evicts its oldest entries instead of growing without bound, for caches keyed by client input.

/** A Map with a maximum size; setting a key makes it the newest. */
export class BoundedMap<K, V> extends Map<K, V> {
  private readonly maximumSize: number;

  constructor(maximumSize: number) {
    super();
    this.maximumSize = maximumSize;
  }

  override set(key: K, value: V): this {
    this.delete(key);
    super.set(key, value);
    if (this.size > this.maximumSize) this.delete(this.keys().next().value as K);
    return this;
  }
}
