// Progress bars of rollouts and transfers.
import type { Paint, Style } from './paint.ts';

/** Segment of a bar. */
export interface Part {
  readonly count: number;
  /** Character with and without Unicode. */
  readonly glyph: readonly [string, string];
  readonly style: Style | undefined;
}

/**
 * Distributes the cells of a bar. Each part gets its share of the width, rounded down, but at least one cell if it is
 * not zero, so that a single failure among thousands is visible. Parts that make up the total fill the width.
 */
export function shares(counts: readonly number[], total: number, width: number): number[] {
  if (total <= 0) return counts.map(() => 0);
  const cells = counts.map((count) => (count > 0 ? Math.max(1, Math.floor((count * width) / total)) : 0));
  for (let over = cells.reduce((sum, cell) => sum + cell, 0) - width; over > 0; over -= 1) {
    cells[cells.indexOf(Math.max(...cells))]! -= 1;
  }
  const used = cells.reduce((sum, cell) => sum + cell, 0);
  const isWhole = counts.reduce((sum, count) => sum + count, 0) >= total;
  if (isWhole && used < width) cells[cells.indexOf(Math.max(...cells))]! += width - used;
  return cells;
}

/** Draws a bar with this many cells, in brackets. */
export function formatBar(
  parts: readonly Part[],
  total: number,
  options: { width: number; hasUnicode: boolean; paint: Paint },
): string {
  const { width, hasUnicode, paint } = options;
  const cells = shares(
    parts.map(({ count }) => count),
    total,
    width,
  );
  const filled = parts.map(({ glyph, style }, index) => paint(style, glyph[hasUnicode ? 0 : 1].repeat(cells[index]!)));
  const rest = width - cells.reduce((sum, cell) => sum + cell, 0);
  return `[${filled.join('')}${paint('gray', (hasUnicode ? '░' : '.').repeat(rest))}]`;
}
