// Formats tables like kubectl: upper-case headings, minimal column widths, three spaces between columns.
import type { Paint, Style } from './paint.ts';

/** A cell: plain or styled text. */
export type Cell = string | { readonly text: string; readonly style: Style | undefined };

const textOf = (cell: Cell): string => (typeof cell === 'string' ? cell : cell.text);

/** Formats rows under headings. The last column is not padded; empty cells show `-`. */
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
