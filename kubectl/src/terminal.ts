// Terminal output and its capabilities.

/** Output of the plugin, a terminal or a pipe. */
export interface Terminal {
  /** Writes to standard output. */
  write(text: string): void;
  /** Writes a line to standard error. */
  say(line: string): void;
  /** Writes to standard error without a line break, to be overwritten later. */
  draw(text: string): void;
  /** Whether standard output is an interactive terminal. */
  readonly isInteractive: boolean;
  /** Whether standard error is a terminal. */
  readonly showsProgress: boolean;
  readonly hasColor: boolean;
  /** Whether Unicode block characters are supported. */
  readonly hasUnicode: boolean;
  readonly columns: number;
}

/** Returns the terminal of the process. `color: false` overrides everything else. */
export function processTerminal(environment: NodeJS.ProcessEnv, options: { color: boolean }): Terminal {
  const { stdout, stderr } = process;
  const isInteractive = stdout.isTTY === true && environment.TERM !== 'dumb';
  const locale = environment.LC_ALL || environment.LC_CTYPE || environment.LANG || '';
  return {
    write: (text) => void stdout.write(text),
    say: (line) => void stderr.write(`${line}\n`),
    draw: (text) => void stderr.write(text),
    isInteractive,
    showsProgress: stderr.isTTY === true && environment.TERM !== 'dumb',
    // https://no-color.org: any non-empty value.
    hasColor: isInteractive && options.color && !environment.NO_COLOR,
    hasUnicode: /utf-?8/i.test(locale),
    columns: stdout.columns || 80,
  };
}
