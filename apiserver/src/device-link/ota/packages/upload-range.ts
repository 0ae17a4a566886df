// Which bytes of an artifact a request brings: from the header Content-Range (RFC 9110, 14.4) or from the request's fields.
import { invalidArgument } from '../../../platform/errors.ts';

/** The range that an upload states before it sends its bytes. */
export interface UploadRange {
  /** Offset of the first byte; undefined: the bytes are the whole artifact. */
  readonly start: number | undefined;
  /** Offset behind the last byte; undefined: not said. */
  readonly end: number | undefined;
  /** Size of the whole artifact; undefined: not said. */
  readonly total: number | undefined;
}

/**
 * Reads the range of an upload. `contentRange` is the header, of the form `bytes FIRST-LAST/TOTAL` with `*` for a total that is
 * not known, or with `*` for the range: no bytes, which completes an upload whose bytes are all held. Throws INVALID_ARGUMENT
 * for any other form, and for fields that say something else.
 */
export function uploadRange(
  contentRange: string | undefined,
  fields: { readonly offset?: number | undefined; readonly totalBytes: number },
): UploadRange {
  const { offset, totalBytes } = fields;
  if (contentRange === undefined) {
    return { start: offset, end: undefined, total: totalBytes === 0 ? undefined : totalBytes };
  }
  if (offset !== undefined || totalBytes !== 0) {
    throw invalidArgument('offset and total_bytes cannot be given together with Content-Range');
  }
  const [, complete] = /^bytes \*\/(\d{1,15})$/i.exec(contentRange.trim()) ?? [];
  if (complete !== undefined) return { start: Number(complete), end: Number(complete), total: Number(complete) };
  const [, first, last, all] = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/i.exec(contentRange.trim()) ?? [];
  if (first === undefined || last === undefined || all === undefined) {
    throw invalidArgument('Content-Range must have the form bytes FIRST-LAST/TOTAL or bytes */TOTAL');
  }
  const start = Number(first);
  const end = Number(last) + 1;
  const total = all === '*' ? undefined : Number(all);
  if (end <= start || (total !== undefined && end > total)) {
    throw invalidArgument('Content-Range must name its first byte, its last byte and the total in this order');
  }
  return { start, end, total };
}
