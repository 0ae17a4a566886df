// The row of a point in the binary COPY of a flush: columns of fixed places, the payload last but one.
// https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format".

/** The columns in their order. */
export const pointColumns = 'time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload, received';

/** Where the batch, the leaf and the tenant are, counted from the start of the row. */
export const rowOffsets = { time: 6, device: 18, batch: 38, leaf: 58, tenant: 62 } as const;

/** Bytes of a row before its payload, and after it. */
export const rowHeadBytes = (tenantBytes: number): number => rowOffsets.tenant + 4 + tenantBytes + 4 + 32 + 4;
export const rowTailBytes = 12;

/** Writes an unsigned 32-bit number. */
export function writeUint32(into: Uint8Array, value: number, at: number): void {
  into[at] = value >>> 24;
  into[at + 1] = value >>> 16;
  into[at + 2] = value >>> 8;
  into[at + 3] = value;
}

/** Writes the 16 bytes of a UUID in lower case. */
export function writeUuid(into: Uint8Array, id: string, start: number): void {
  let at = start;
  for (let index = 0; index < 36; index += 2) {
    if (index === 8 || index === 13 || index === 18 || index === 23) index += 1;
    into[at] = (nibble(id.charCodeAt(index)) << 4) | nibble(id.charCodeAt(index + 1));
    at += 1;
  }
}

/** Returns the value of a hexadecimal digit in lower case. */
const nibble = (code: number): number => (code <= 0x39 ? code - 0x30 : code - 0x57);

const two32 = 4294967296;

/** Writes a time that is not before 1970 as nanoseconds in 64 bits, without a BigInt. */
export function writeTime(into: Uint8Array, seconds: number, nanoseconds: number, at: number): void {
  // All numbers stay below 2^53: seconds are split at 16 bits.
  const high = Math.floor(seconds / 65536) * 1e9;
  const low = (high % 65536) * 65536 + (seconds % 65536) * 1e9 + nanoseconds;
  const carry = Math.floor(low / two32);
  writeUint32(into, Math.floor(high / 65536) + carry, at);
  writeUint32(into, low - carry * two32, at + 4);
}
