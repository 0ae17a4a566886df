// The promises that the demo checks, the observations of each, and the final table.

/** A promise and its observation. */
interface Row {
  promise: string;
  observed: string | undefined;
  isKept: boolean;
}

/** Collects observations. An unobserved promise counts as broken. */
export class Promises<Key extends string> {
  private readonly rows: Map<Key, Row>;

  /** `promises` by key, in the order of the table. */
  constructor(promises: Readonly<Record<Key, string>>) {
    const entries = Object.entries<string>(promises) as [Key, string][];
    this.rows = new Map(entries.map(([key, promise]) => [key, { promise, observed: undefined, isKept: false }]));
  }

  /** Records an observation. It replaces earlier ones of the same promise. */
  observe(key: Key, isKept: boolean, observed: string): void {
    const row = this.rows.get(key)!;
    row.observed = observed;
    row.isKept = isKept;
  }

  /** Whether all promises were kept. */
  get areKept(): boolean {
    return [...this.rows.values()].every((row) => row.isKept);
  }

  /** Formats the table, one line per promise. */
  table(): string {
    const rows = [...this.rows.values()].map(({ promise, observed, isKept }) => [
      promise,
      observed ?? 'not reached',
      isKept ? 'ok' : 'NOT OK',
    ]);
    const all = [['promise', 'observed', ''], ...rows];
    const width = (column: number) => Math.max(...all.map((row) => row[column]!.length));
    const [first, second] = [width(0), width(1)];
    return all.map((row) => `${row[0]!.padEnd(first)}  ${row[1]!.padEnd(second)}  ${row[2]}`.trimEnd()).join('\n');
  }
}
