// Where packaging reads from and writes to.
import { join, resolve } from 'node:path';

/** The repository. */
export const root = resolve(import.meta.dirname, '..');

/** What packaging makes. */
export const dist = join(root, 'dist');
