// A text that is drawn again over itself, on a terminal.
import type { Terminal } from './terminal.ts';

/** Draws in place of what it drew before. */
export class Screen {
  private readonly terminal: Terminal;
  private height = 0;
  private shown = '';

  constructor(terminal: Terminal) {
    this.terminal = terminal;
  }

  /** Replaces what is shown. The text ends with a line break. */
  draw(text: string): void {
    if (text === this.shown) return;
    const columns = process.stdout.columns || this.terminal.columns;
    const lines = text.split('\n').slice(0, -1);
    const up = this.height > 0 ? `\u001b[${this.height}A` : '';
    this.terminal.write(`${up}\r\u001b[J${lines.map((line) => `${cut(line, columns)}\n`).join('')}`);
    this.height = lines.length;
    this.shown = text;
  }

  /** Leaves what is shown where it is; the next drawing begins below. */
  release(): void {
    this.height = 0;
    this.shown = '';
  }
}

/** Cuts a line at the edge, so that it never wraps and the height stays known; escape sequences take no room. */
export function cut(line: string, columns: number): string {
  let width = 0;
  let result = '';
  // eslint-disable-next-line no-control-regex -- control characters are what it looks for
  for (const [piece] of line.matchAll(/\u001b\[[0-9;]*m|./gu)) {
    if (piece.startsWith('\u001b')) result += piece;
    else if (width < columns) {
      result += piece;
      width += 1;
    }
  }
  return result;
}
