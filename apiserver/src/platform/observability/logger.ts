// Structured logs: JSON lines on stderr, with secrets redacted by field name wherever they appear.
import { type DestinationStream, type Logger as PinoLogger, pino } from 'pino';
import { currentTrace } from './tracing.ts';

/** A structured logger; `child` adds fields to every line. */
export type Logger = PinoLogger;

/** The levels, most detailed first. */
export const logLevels = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'] as const;

/** The children of each logger of `createLogger`, which keep a level of their own. Services make theirs once. */
const children = new WeakMap<Logger, Logger[]>();

/** Changes the level of a logger of `createLogger` and of all its children. */
export function setLogLevel(logger: Logger, level: (typeof logLevels)[number]): void {
  for (const one of [logger, ...(children.get(logger) ?? [])]) one.level = level;
}

const secretFields = [
  'authorization',
  'password',
  'token',
  'api_key',
  'apiKey',
  'secret',
  'provision_key',
  'refresh_token',
  'access_token',
];

/**
 * Creates the process's logger. Lines are written to stderr synchronously, so that the last ones before a crash are not
 * lost.
 */
export function createLogger(
  level: string,
  bindings: Record<string, unknown> = {},
  destination: DestinationStream = pino.destination({ dest: 2, sync: true }),
): Logger {
  const made: Logger[] = [];
  const logger = pino(
    {
      level,
      base: bindings,
      onChild: (child) => void made.push(child),
      // Lines logged during a call name its trace and its request.
      mixin: () => {
        const trace = currentTrace();
        if (!trace) return {};
        const { context, requestId } = trace;
        return { trace_id: context.traceId, ...(requestId === undefined ? {} : { request_id: requestId }) };
      },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: { paths: secretFields.flatMap((field) => [field, `*.${field}`]), censor: '[redacted]' },
    },
    destination,
  );
  children.set(logger, made);
  return logger;
}
