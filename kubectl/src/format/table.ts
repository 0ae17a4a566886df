// Tables as kubectl prints them: upper-case headings, columns as wide as they must be, three spaces between.
import type { Paint, Style } from '../terminal.ts';

/** A cell: text, or text in a style. */
export type Cell = string | { readonly text: string; readonly style: Style | undefined };

const textOf = (cell: Cell): string => (typeof cell === 'string' ? cell : cell.text);

/** Rows under headings; the last column is not padded. An empty cell shows `-`. */
export function formatTable(headings: readonly string[], rows: readonly (readonly Cell[])[], paint: Paint): string {
  const widths = headings.map((heading, column) =>
    Math.max(heading.length, ...rows.map((row) => (textOf(row[column] ?? '') || '-').length)),
  );
  const line = (cells: readonly Cell[]): string =>
    cells
      .map((cell, column) => {
        const text = textOf(cell) || '-';
        const painted = typeof cell === 'string' ? text : paint(cell.style, text);
        return column === cells.length - 1 ? painted : painted + ' '.repeat(widths[column]! - text.length + 3);
      })
      .join('');
  return `${[headings, ...rows].map(line).join('\n')}\n`;
}
