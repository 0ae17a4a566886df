// Structured logs: JSON lines on stderr. Levels: error needs attention, warn recovers automatically, info is a change
// of state, debug is one reconcile, trace is one request.
import { type Logger as PinoLogger, pino } from 'pino';

/** A structured logger; `child` adds fields to every line. */
export type Logger = PinoLogger;

/** Creates the process's logger. Writes are synchronous, so that the last lines before a crash are not lost. */
export function createLogger(level: string, bindings: Record<string, unknown> = {}): Logger {
  const secrets = ['authorization', 'password', 'adminPassword', 'token', 'secret', 'provisionKey'];
  return pino(
    {
      level,
      base: bindings,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: { paths: secrets.flatMap((field) => [field, `*.${field}`]), censor: '[redacted]' },
    },
    pino.destination({ dest: 2, sync: true }),
  );
}
