// How much memory values take, roughly and without looking at each twice: for caches that are bounded in bytes.

/** Returns roughly what a value of JSON, or a message, takes in memory; 0 for undefined. */
export function memoryOf(value: unknown): number {
  if (typeof value === 'string') return 24 + value.length;
  if (Array.isArray(value)) return value.reduce((sum: number, item) => sum + 8 + memoryOf(item), 40);
  if (typeof value !== 'object' || value === null) return value === undefined ? 0 : 16;
  return Object.entries(value).reduce((sum, [key, item]) => sum + 32 + key.length + memoryOf(item), 64);
}
