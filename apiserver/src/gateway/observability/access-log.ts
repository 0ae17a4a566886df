// The access log: one JSON line for each request on both public ports, and for each beginning and end of /ws, without anything a client could have put a secret into
// (no query, no body, no header but the checked request id and trace id).
import { pino } from 'pino';
import { codes, type ErrorCode } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';

/** What is logged: nothing; what failed; every request but health probes; everything. */
export type AccessLogLevel = 'off' | 'errors' | 'requests' | 'all';

/** Where lines go; each ends in a line feed. */
export interface LineSink {
  write(line: string): unknown;
  flushSync?(): void;
}

/** What is learnt of a request while it is answered. */
export interface AccessEntry {
  readonly transport: 'rest' | 'grpc' | 'websocket';
  /** HTTP method; empty for gRPC. */
  readonly verb: string;
  readonly requestId: string;
  /** performance.now() at its beginning. */
  readonly started: number;
  readonly traceparent: string | undefined;
  /** The route's template or the full method name; empty when there is none. */
  route: string;
  address: string;
  /** Who called, once that is known, also when the call is refused. */
  caller: Caller | undefined;
  code: ErrorCode | 'OK';
  /** The HTTP status; the code's number for gRPC. */
  status: number;
  bytesIn: number;
  bytesOut: number;
  /** The code with which a WebSocket ended (RFC 6455, 7.4), once it has. */
  closeCode: number | undefined;
}

const probes = new Set(['/healthz', '/readyz']);

/** Writes the lines, many at a time: a system call for each would cost more than the request itself. */
export class AccessLog {
  /** Whether anything is logged at all. */
  readonly isOn: boolean;
  private readonly level: AccessLogLevel;
  private readonly sink: LineSink;

  /** `sink`: standard output unless given, which leaves the process within a second. */
  constructor(level: AccessLogLevel, sink?: LineSink) {
    this.level = level;
    this.isOn = level !== 'off';
    this.sink = sink ?? (this.isOn ? standardOutput() : { write: () => undefined });
  }

  /** A new entry; it is written when the request is over. */
  begin(
    transport: AccessEntry['transport'],
    verb: string,
    requestId: string,
    traceparent: string | undefined,
  ): AccessEntry {
    return {
      transport,
      verb,
      requestId,
      started: performance.now(),
      traceparent,
      route: '',
      address: '',
      caller: undefined,
      code: 'OK',
      status: 0,
      bytesIn: 0,
      bytesOut: 0,
      closeCode: undefined,
    };
  }

  /** Writes a line, if requests like it are logged. */
  end(entry: AccessEntry): void {
    if (this.isOn && isLogged(this.level, entry)) this.sink.write(`${lineOf(entry, performance.now(), Date.now())}\n`);
  }

  /** Writes what is still held back. */
  close(): void {
    this.sink.flushSync?.();
  }
}

function standardOutput(): LineSink {
  return pino.destination({ dest: 1, sync: false, minLength: 8192, periodicFlush: 500 });
}

/** Whether a level asks for an entry. */
export function isLogged(level: AccessLogLevel, entry: Pick<AccessEntry, 'code' | 'route'>): boolean {
  if (level === 'requests') return entry.code !== 'OK' || !probes.has(entry.route);
  return level === 'all' || (level === 'errors' && entry.code !== 'OK');
}

/** An entry as JSON: what is unknown is left out. */
export function lineOf(entry: AccessEntry, now: number, time: number): string {
  const { caller } = entry;
  return JSON.stringify({
    time: new Date(time).toISOString(),
    log: 'access',
    transport: entry.transport,
    method: entry.verb || undefined,
    route: entry.route || undefined,
    status: entry.status,
    code: entry.code,
    close_code: entry.closeCode,
    duration_ms: Math.round((now - entry.started) * 1000) / 1000,
    bytes_in: entry.transport === 'rest' ? entry.bytesIn : undefined,
    bytes_out: entry.transport === 'rest' ? entry.bytesOut : undefined,
    request_id: entry.requestId,
    trace_id: traceIdOf(entry.traceparent),
    tenant: caller?.tenantId || undefined,
    caller: caller?.kind,
    address: entry.address || undefined,
  });
}

/** The trace id of a W3C traceparent header; undefined for anything malformed. */
export function traceIdOf(traceparent: string | undefined): string | undefined {
  if (traceparent === undefined) return undefined;
  const id = /^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/.exec(traceparent)?.[1];
  return id === '0'.repeat(32) ? undefined : id;
}

/** The catalogue's code for an HTTP status that is written without an error. */
export function codeOfStatus(status: number): ErrorCode | 'OK' {
  if (status < 400) return 'OK';
  // Readiness, and a body that turned out to be malformed before anybody read it.
  return (['UNAVAILABLE', 'INVALID_ARGUMENT'] as const).find((code) => codes[code].http === status) ?? 'UNKNOWN';
}
