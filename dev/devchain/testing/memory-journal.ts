// A journal in memory.
import type { DevchainEvent } from '../events.ts';
import type { Journal } from '../journal.ts';

export interface MemoryJournal extends Journal<DevchainEvent> {
  /** Returns a copy of all entries, as read from disk. */
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
