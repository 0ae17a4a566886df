// Where the plugin writes: what can be shown there is decided once, here.

/** The terminal, or the pipe, behind the plugin. */
export interface Terminal {
  /** Writes to standard output. */
  write(text: string): void;
  /** Writes a line to standard error. */
  say(line: string): void;
  /** Writes to standard error as it is, to draw over it later. */
  draw(text: string): void;
  /** Whether standard output can be drawn on again. */
  readonly isInteractive: boolean;
  /** Whether standard error is a terminal. */
  readonly showsProgress: boolean;
  readonly hasColor: boolean;
  /** Whether block characters can be shown. */
  readonly hasUnicode: boolean;
  readonly columns: number;
}

/** The process's own. `color: false` wins over everything. */
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
    // https://no-color.org: any value that is not empty.
    hasColor: isInteractive && options.color && !environment.NO_COLOR,
    hasUnicode: /utf-?8/i.test(locale),
    columns: stdout.columns || 80,
  };
}

const codes = { red: 31, green: 32, yellow: 33, blue: 34, gray: 90, bold: 1 } as const;

/** A colour or weight. */
export type Style = keyof typeof codes;

/** Puts text into a style. */
export type Paint = (style: Style | undefined, text: string) => string;

/** Paints, or leaves everything as it is. */
export function painter(hasColor: boolean): Paint {
  return (style, text) => (hasColor && style !== undefined ? `\u001b[${codes[style]}m${text}\u001b[0m` : text);
}
