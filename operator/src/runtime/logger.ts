// Structured logs: JSON lines on stderr. Levels: error needs a person, warn heals by itself, info is a change of the
// world, debug is one reconcile, trace is one request.
import { pino, type Logger as PinoLogger } from 'pino';

/** A structured logger; `child` adds fields to every line. */
export type Logger = PinoLogger;

/** Makes the process's logger. Lines go out synchronously, so that the last words of a crash are not lost. */
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
