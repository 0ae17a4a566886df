// Access log: one JSON line per request on the public ports, per CONNECT and PUBLISH of MQTT, and for the start and the end of
// each /ws connection. It contains nothing in which a client could have put a secret: no query, body or headers except the
// validated request id and trace id.
import type { DescMethod } from '@bufbuild/protobuf';
import { pino } from 'pino';
import { codes, type ErrorCode } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';

/** What is logged: nothing, failures, every request except health probes, or everything. */
export type AccessLogLevel = 'off' | 'errors' | 'requests' | 'all';

/** Destination of lines, each ending in a line feed. */
export interface LineSink {
  write(line: string): unknown;
  flushSync?(): void;
}

/** What is known about a request while it is handled. */
export interface AccessEntry {
  readonly transport: 'rest' | 'grpc' | 'websocket' | 'mqtt';
  /** HTTP method, or CONNECT or PUBLISH of MQTT; empty for gRPC. */
  readonly verb: string;
  readonly requestId: string;
  /** performance.now() at the start of the request. */
  readonly started: number;
  readonly traceparent: string | undefined;
  /** The route's template or the full method name; empty if there is none. */
  route: string;
  /** The method once known. This field and the next two are for the audit log. */
  method: DescMethod | undefined;
  /** Path variables of a REST request by field. */
  variables: ReadonlyMap<string, string | undefined> | undefined;
  userAgent: string;
  address: string;
  /** The caller once known, even when the call is rejected. */
  caller: Caller | undefined;
  code: ErrorCode | 'OK';
  /** HTTP status; for gRPC, the number of the code. */
  status: number;
  bytesIn: number;
  bytesOut: number;
  /** Close code of a WebSocket (RFC 6455, 7.4), once it has ended. */
  closeCode: number | undefined;
}

const probes = new Set(['/healthz', '/readyz']);

/** Writes lines in batches: a system call for each would cost more than the request itself. */
export class AccessLog {
  /** Whether anything is logged at all. */
  readonly isOn: boolean;
  private readonly level: AccessLogLevel;
  private readonly sink: LineSink;

  /** `sink` defaults to standard output, which receives lines within a second. */
  constructor(level: AccessLogLevel, sink?: LineSink) {
    this.level = level;
    this.isOn = level !== 'off';
    this.sink = sink ?? (this.isOn ? standardOutput() : { write: () => undefined });
  }

  /** Creates an entry, to be written when the request is over. */
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
      method: undefined,
      variables: undefined,
      userAgent: '',
      address: '',
      caller: undefined,
      code: 'OK',
      status: 0,
      bytesIn: 0,
      bytesOut: 0,
      closeCode: undefined,
    };
  }

  /** Writes a line if requests like this one are logged. */
  end(entry: AccessEntry): void {
    if (this.isOn && isLogged(this.level, entry)) this.sink.write(`${lineOf(entry, performance.now(), Date.now())}\n`);
  }

  /** Flushes buffered lines. */
  close(): void {
    this.sink.flushSync?.();
  }
}

/** Returns a sink that collects lines as bytes: in its other mode, pino counts the bytes of all collected lines for each line. */
function standardOutput(): LineSink {
  const bounds = { minLength: 65_536, maxWrite: 131_072, periodicFlush: 500 };
  const output = pino.destination({ dest: 1, sync: false, contentMode: 'buffer', ...bounds });
  // Its types know only the other mode.
  const bytes = output as unknown as { write(line: Buffer): boolean };
  return { write: (line) => bytes.write(Buffer.from(line)), flushSync: () => output.flushSync() };
}

/** Reports whether an entry is logged at a level. */
export function isLogged(level: AccessLogLevel, entry: Pick<AccessEntry, 'code' | 'route'>): boolean {
  if (level === 'requests') return entry.code !== 'OK' || !probes.has(entry.route);
  return level === 'all' || (level === 'errors' && entry.code !== 'OK');
}

/** Formats an entry as JSON, without unknown values. */
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

/** Returns the trace id of a W3C traceparent header, or undefined if it is malformed. */
export function traceIdOf(traceparent: string | undefined): string | undefined {
  if (traceparent === undefined) return undefined;
  const id = /^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/.exec(traceparent)?.[1];
  return id === '0'.repeat(32) ? undefined : id;
}

/** Returns the error code for an HTTP status that was written without an error. */
export function codeOfStatus(status: number): ErrorCode | 'OK' {
  if (status < 400) return 'OK';
  // Readiness, and a body found malformed before it was read.
  return (['UNAVAILABLE', 'INVALID_ARGUMENT'] as const).find((code) => codes[code].http === status) ?? 'UNKNOWN';
}
