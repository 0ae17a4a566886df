// Ids as bytes and as text.
import { writeUuid } from '../points/point-row.ts';
import { idBytes } from './leaf-blocks.ts';

/** Returns the bytes of an id. */
export function bytesOfId(id: string): Buffer {
  const bytes = Buffer.allocUnsafe(idBytes);
  writeUuid(bytes, id, 0);
  return bytes;
}

/** Returns the bytes of ids, one after another. */
export function bytesOfIds(ids: readonly string[]): Buffer {
  const bytes = Buffer.allocUnsafe(ids.length * idBytes);
  for (let index = 0; index < ids.length; index += 1) writeUuid(bytes, ids[index]!, index * idBytes);
  return bytes;
}

/** Returns the text of the id at a place in bytes. */
export function idAt(bytes: Buffer, at = 0): string {
  const hex = bytes.toString('hex', at, at + idBytes);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
