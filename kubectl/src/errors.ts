// What can go wrong, in words for the person at the terminal, and the exit code that a script sees.

/** Exit codes, part of the plugin's contract (docs/kubectl.md). */
export const exitCodes = {
  ok: 0,
  /** Anything that has no code of its own. */
  failed: 1,
  /** The command line is wrong. */
  usage: 2,
  notFound: 3,
  /** The cluster or the data plane knows who asks, or does not, and will not do it. */
  denied: 4,
  /** The state of the thing does not allow it now. */
  precondition: 5,
  /** The cluster or the data plane cannot be reached, or not in time. */
  unavailable: 6,
  /** A rollout that was watched to its end did not succeed. */
  unsuccessful: 7,
} as const;

/** How the plugin ends. */
export type Outcome = keyof typeof exitCodes;

/** An end that is no defect: the message says what is wrong, the hint what to do. */
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

/** The command line is wrong; the hint names the help that says how it is right. */
export const usageError = (message: string, command = ''): PluginError =>
  new PluginError('usage', message, `see: kubectl kellet ${command ? `${command} ` : ''}--help`);

/** What went wrong on a connection, short: `connection refused`, not a stack of errors. */
export function connectionProblem(error: unknown): string {
  const { code, message } = error as { code?: string; message?: string };
  const words: Record<string, string> = {
    ECONNREFUSED: 'connection refused',
    ENOTFOUND: 'unknown host',
    ETIMEDOUT: 'no answer in time',
    ECONNRESET: 'connection lost',
    EPIPE: 'connection lost',
    TimeoutError: 'no answer in time',
  };
  const name = error instanceof Error ? error.name : '';
  return words[code ?? ''] ?? words[name] ?? message ?? String(error);
}
