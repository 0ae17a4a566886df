// Errors with messages for users, and exit codes for scripts.

/** Exit codes, part of the plugin's contract (docs/kubectl.md). */
export const exitCodes = {
  ok: 0,
  /** Any other failure. */
  failed: 1,
  /** Invalid command line. */
  usage: 2,
  notFound: 3,
  /** Denied by the cluster or the data plane. */
  denied: 4,
  /** Not possible in the current state. */
  precondition: 5,
  /** The cluster or the data plane is unreachable, or timed out. */
  unavailable: 6,
  /** The watched rollout did not succeed. */
  unsuccessful: 7,
} as const;

/** Result of a run. */
export type Outcome = keyof typeof exitCodes;

/** An expected error. The message says what is wrong, the hint what to do. */
export class PluginError extends Error {
  readonly outcome: Outcome;
  readonly hint: string | undefined;

  constructor(outcome: Outcome, message: string, hint?: string) {
    super(message);
    this.name = 'PluginError';
    this.outcome = outcome;
    this.hint = hint;
  }
}

/** Returns an error for an invalid command line, with a hint to the help. */
export const usageError = (message: string, command = ''): PluginError =>
  new PluginError('usage', message, `see: kubectl kellet ${command ? `${command} ` : ''}--help`);

/** Returns a short description of a connection error, such as `connection refused`. */
export function connectionProblem(error: unknown): string {
  const { code, message } = error as { code?: string; message?: string };
  const words: Record<string, string> = {
    ECONNREFUSED: 'connection refused',
    ENOTFOUND: 'unknown host',
    ETIMEDOUT: 'timed out',
    ECONNRESET: 'connection lost',
    EPIPE: 'connection lost',
    TimeoutError: 'timed out',
    UND_ERR_BODY_TIMEOUT: 'timed out',
    UND_ERR_CONNECT_TIMEOUT: 'timed out',
    UND_ERR_HEADERS_TIMEOUT: 'timed out',
    UND_ERR_SOCKET: 'connection lost',
  };
  const name = error instanceof Error ? error.name : '';
  return words[code ?? ''] ?? words[name] ?? message ?? String(error);
}
