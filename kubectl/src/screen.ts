// Redraws a text in place on a terminal.
import { type Terminal, visible } from './terminal.ts';

/** Replaces its previous output. */
export class Screen {
  private readonly terminal: Terminal;
  private height = 0;
  private shown = '';

  constructor(terminal: Terminal) {
    this.terminal = terminal;
  }

  /** Replaces the shown text. The text must end with a line break. */
  draw(text: string): void {
    if (text === this.shown) return;
    const columns = process.stdout.columns || this.terminal.columns;
    const lines = visible(text).split('\n').slice(0, -1);
    const up = this.height > 0 ? `\u001b[${this.height}A` : '';
    this.terminal.control(`${up}\r\u001b[J`);
    this.terminal.write(lines.map((line) => `${cut(line, columns)}\n`).join(''));
    this.height = lines.length;
    this.shown = text;
  }

  /** Keeps the shown text; the next one is drawn below it. */
  release(): void {
    this.height = 0;
    this.shown = '';
  }
}

/** Truncates a line to the width of the terminal, so that it never wraps. Escape sequences do not count. */
export function cut(line: string, columns: number): string {
  let width = 0;
  let result = '';
  // eslint-disable-next-line no-control-regex -- matches control characters on purpose
  for (const [piece] of line.matchAll(/\u001b\[[0-9;]*m|./gu)) {
    if (piece.startsWith('\u001b')) result += piece;
    else if (width < columns) {
      result += piece;
      width += 1;
    }
  }
  return result;
}
