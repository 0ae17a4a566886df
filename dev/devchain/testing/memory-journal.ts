// A journal that keeps its entries in memory, for tests of what follows from them.
import type { DevchainEvent } from '../events.ts';
import type { Journal } from '../journal.ts';

export interface MemoryJournal extends Journal<DevchainEvent> {
  /** A copy of all entries, as they would be read from disk. */
  read(): DevchainEvent[];
}

export function memoryJournal(): MemoryJournal {
  const lines: string[] = [];
  return {
    append: (entries) => void lines.push(...entries.map((entry) => JSON.stringify(entry))),
    read: () => lines.map((line) => JSON.parse(line) as DevchainEvent),
    close: () => undefined,
  };
}
