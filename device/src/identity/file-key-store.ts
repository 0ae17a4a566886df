// The identity of a device in a file that only its owner may read.
import fs from 'node:fs';
import path from 'node:path';
import type { Identity } from '../messages.ts';
import { writeAtomically } from '../write-atomically.ts';
import type { KeyStore } from './key-store.ts';

/** Keeps the identity as JSON in a file of mode 0600. */
export class FileKeyStore implements KeyStore {
  private readonly file: string;

  constructor(file: string) {
    this.file = file;
  }

  /** Throws if others may read the file, and if it is damaged: a new claim would not bring the key back. */
  load(): Promise<Identity | undefined> {
    return Promise.resolve().then(() => {
      let text: string;
      try {
        const { mode } = fs.statSync(this.file);
        if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
          throw new Error(`${this.file} contains a key and may be read by others: set its mode to 0600`);
        }
        text = fs.readFileSync(this.file, 'utf8');
      } catch (error) {
        if ((error as { code?: string }).code === 'ENOENT') return undefined;
        throw error;
      }
      return parseIdentity(text, this.file);
    });
  }

  save(identity: Identity): Promise<void> {
    return Promise.resolve().then(() => {
      fs.mkdirSync(path.dirname(this.file), { recursive: true, mode: 0o700 });
      writeAtomically(this.file, `${JSON.stringify(identity)}\n`);
    });
  }
}

function parseIdentity(text: string, file: string): Identity {
  try {
    const { device_id, api_key } = JSON.parse(text) as Partial<Identity>;
    if (typeof device_id === 'string' && typeof api_key === 'string' && device_id && api_key) {
      return { device_id, api_key };
    }
  } catch {
    // The same error as for JSON of another kind. The text stays out of it, because it contains a key.
  }
  throw new Error(`${file} does not contain an identity (device_id and api_key)`);
}
