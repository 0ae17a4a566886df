// A store of immutable objects outside of the database.

/** An object does not exist. */
export class MissingObjectError extends Error {
  constructor(name: string, cause?: unknown) {
    super(`there is no object ${name}`, { cause });
    this.name = 'MissingObjectError';
  }
}

/** A store is full. */
export class StoreFullError extends Error {
  constructor(cause: unknown) {
    super('the store is full', { cause });
    this.name = 'StoreFullError';
  }
}

/**
 * A store. Names have the form SEGMENT/SEGMENT/…, of lowercase letters, digits and the characters - _ = and ., and are never used
 * twice: an object that was moved away does not come back with other bytes.
 */
export interface ObjectStore {
  /** Writes an object. It is durable when this resolves. Throws StoreFullError. */
  put(name: string, bytes: Buffer): Promise<void>;
  /** Returns `length` bytes of an object. Throws MissingObjectError. */
  read(name: string, offset: number, length: number): Promise<Buffer>;
  /**
   * Gives an object another name. It is durable under that name when this resolves; a failure may leave it under both.
   * Moving it again is no error. Throws MissingObjectError if there is neither.
   */
  move(from: string, to: string): Promise<void>;
  /** Removes an object and all whose names begin with it and a slash. None at all is no error. */
  remove(name: string): Promise<void>;
  /** Returns names of objects that begin with a name and a slash, in order: up to a thousand after `after`. */
  list(name: string, after: string): Promise<string[]>;
  /** Releases connections. */
  close(): void;
}
