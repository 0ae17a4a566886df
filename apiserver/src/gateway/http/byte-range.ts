// Range requests for raw bytes (RFC 9110, 14), and whether the client prefers bytes to JSON.

/** A requested range: from `first` to `last` (inclusive; absent means the end), or the last `suffix` bytes. */
export type ByteRange = { readonly first: number; readonly last?: number } | { readonly suffix: number };

/**
 * Parses a Range header. Returns undefined for ranges that RFC 9110 lets a server ignore: other units, several ranges,
 * malformed values.
 */
export function parseRange(header: string | undefined): ByteRange | undefined {
  const [, first = '', last = ''] = /^bytes=\s*(\d{0,15})-(\d{0,15})\s*$/i.exec(header ?? '') ?? [];
  if (first === '') return last === '' ? undefined : { suffix: Number(last) };
  if (last === '') return { first: Number(first) };
  return Number(last) < Number(first) ? undefined : { first: Number(first), last: Number(last) };
}

/**
 * Reports whether an Accept header prefers application/octet-stream to JSON, the default: it must be listed, with at
 * least the quality of JSON, and on a tie JSON must not be listed.
 */
export function prefersBytes(accept: string | undefined): boolean {
  if (accept === undefined || !/octet-stream/i.test(accept)) return false;
  const quality = new Map<string, number>();
  for (const part of accept.toLowerCase().split(',')) {
    const [type = '', ...parameters] = part.split(';').map((text) => text.trim());
    const q = parameters.find((parameter) => parameter.startsWith('q='));
    quality.set(type, q === undefined ? 1 : Number(q.slice(2)) || 0);
  }
  const bytes = quality.get('application/octet-stream') ?? 0;
  const named = quality.get('application/json');
  if (named !== undefined) return bytes > named;
  return bytes > 0 && bytes >= (quality.get('application/*') ?? quality.get('*/*') ?? 0);
}
