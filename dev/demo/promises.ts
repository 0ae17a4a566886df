// The promises that the demo puts to the test, what was observed of each, and the table at the end.

/** A promise and what became of it. */
interface Row {
  promise: string;
  observed: string | undefined;
  isKept: boolean;
}

/** Collects observations. A promise nobody observed is not kept. */
export class Promises<Key extends string> {
  readonly #rows: Map<Key, Row>;

  /** `promises` by key, in the order of the table. */
  constructor(promises: Readonly<Record<Key, string>>) {
    const entries = Object.entries<string>(promises) as [Key, string][];
    this.#rows = new Map(entries.map(([key, promise]) => [key, { promise, observed: undefined, isKept: false }]));
  }

  /** Notes what was seen. A later observation of the same promise replaces the earlier one. */
  observe(key: Key, isKept: boolean, observed: string): void {
    const row = this.#rows.get(key)!;
    row.observed = observed;
    row.isKept = isKept;
  }

  /** Reports whether all of them were kept. */
  get areKept(): boolean {
    return [...this.#rows.values()].every((row) => row.isKept);
  }

  /** The table, a line each. */
  table(): string {
    const rows = [...this.#rows.values()].map(({ promise, observed, isKept }) => [
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
