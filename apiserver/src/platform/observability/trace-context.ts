// Parses W3C Trace Context headers (https://www.w3.org/TR/trace-context/).
import { randomBytes } from 'node:crypto';

/** A position in a trace. */
export interface TraceContext {
  /** 32 lower-case hex digits. */
  readonly traceId: string;
  /** 16 lower-case hex digits. */
  readonly spanId: string;
  /** The last two hex digits; bit 0 means that the caller records the trace. */
  readonly flags: number;
  /** The vendor-specific part; empty if absent or invalid. */
  readonly tracestate: string;
}

let randomness = Buffer.alloc(0);
let used = 0;

/**
 * Returns a random id of the given number of bytes, in hex. Randomness is fetched for many ids at a time, because that is
 * a system call.
 */
export function randomTraceId(bytes: 8 | 16): string {
  if (used + bytes > randomness.length) [randomness, used] = [randomBytes(4096), 0];
  const id = randomness.toString('hex', used, used + bytes);
  used += bytes;
  return id;
}

const traceparentForm = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const onlyZeros = /^0+$/;

/** Parses both headers; returns undefined if `traceparent` is missing or invalid, so that a new trace starts here. */
export function readTraceContext(
  traceparent: string | undefined,
  tracestate: string | undefined,
): TraceContext | undefined {
  const [, version, traceId = '', spanId = '', flags = '', rest] = traceparentForm.exec(traceparent ?? '') ?? [];
  if (version === undefined || version === 'ff' || (version === '00' && rest !== undefined)) return undefined;
  if (onlyZeros.test(traceId) || onlyZeros.test(spanId)) return undefined;
  return { traceId, spanId, flags: Number.parseInt(flags, 16), tracestate: validTracestate(tracestate ?? '') };
}

/** Formats the `traceparent` of a position in version 00; unknown flags are dropped. */
export const traceparentOf = ({ traceId, spanId, flags }: TraceContext): string =>
  `00-${traceId}-${spanId}-${(flags & 3).toString(16).padStart(2, '0')}`;

const stateKey = /^(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})$/;
const stateValue = /^[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]$/;

function validTracestate(text: string): string {
  const members = text
    .split(',')
    .map((member) => member.trim())
    .filter((member) => member !== '');
  const keys = new Set<string>();
  for (const member of members) {
    const equals = member.indexOf('=');
    const key = member.slice(0, equals);
    if (equals < 0 || !stateKey.test(key) || !stateValue.test(member.slice(equals + 1)) || keys.has(key)) return '';
    keys.add(key);
  }
  return members.length > 32 || text.length > 512 ? '' : members.join(',');
}
