// The stores of artifacts: the database, and by URL any folder or bucket. New artifacts go into the one that is configured; every
// other is read until its artifacts have been moved.
import type { ObjectStore } from '../../../platform/object-store/object-store.ts';
import { openStore } from '../../../platform/object-store/open-store.ts';
import type { S3Settings } from '../../../platform/object-store/s3-client.ts';
import { inDatabase } from './artifact-store.ts';

/** The name of the database as a store, in settings and commands. */
const databaseName = 'postgres';

/** Returns the store of a setting: the empty text for `postgres`, otherwise the URL without a trailing slash. */
export const parseStoreName = (name: string): string =>
  name === databaseName ? inDatabase : name.replace(/(?<=[^/])\/+$/, '');

/** Returns the name of a store, as a setting has it. */
export const storeName = (store: string): string => (store === inDatabase ? databaseName : store);

/** Opens stores, each once. */
export class ArtifactStores {
  /** The store of new artifacts. */
  readonly current: string;
  private readonly s3: S3Settings;
  private readonly opened = new Map<string, ObjectStore>();

  /** `name` is the store of new artifacts, as the setting has it. */
  constructor(name: string, s3: S3Settings) {
    this.current = parseStoreName(name);
    this.s3 = s3;
  }

  /** Returns a store outside of the database. */
  at(url: string): ObjectStore {
    let store = this.opened.get(url);
    if (!store) this.opened.set(url, (store = openStore(url, this.s3)));
    return store;
  }

  /** Closes all stores. */
  close(): void {
    for (const store of this.opened.values()) store.close();
    this.opened.clear();
  }
}
