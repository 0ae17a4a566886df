// Terminal output and its capabilities.

/** Output of the plugin, a terminal or a pipe. */
export interface Terminal {
  /** Writes to standard output. */
  write(text: string): void;
  /** Writes to standard output what moves the cursor. */
  control(sequence: string): void;
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
    control: (sequence) => void stdout.write(sequence),
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

/** A style of paint.ts, or a character that a terminal carries out or by which it reorders what it shows. */
// eslint-disable-next-line no-control-regex -- matches control characters on purpose
const special = /\u001b\[(?:[01]|3[1-4]|90)m|[\0-\b\v-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Returns a text with its control characters as escapes, such as `\u001b`, but for line breaks, tabs and styles. */
export const visible = (text: string): string =>
  text.replaceAll(special, (found) =>
    found.length > 1 ? found : `\\u${found.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );

/**
 * Returns a terminal that shows what it is given and carries out nothing of it: errors of devices, for example, are written by the
 * devices.
 */
export const guarded = (terminal: Terminal): Terminal => ({
  ...terminal,
  write: (text) => terminal.write(visible(text)),
  say: (line) => terminal.say(visible(line)),
});
