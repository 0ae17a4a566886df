// For tests: malformed MQTT packets, made from valid ones by a generator with a seed, so that a failure can be repeated.

/** Random numbers from 0 to 1 that depend only on the seed (mulberry32). */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Returns a mutation of a packet: bits flipped, bytes cut out, repeated or replaced, lengths changed. */
export function mutate(packet: Buffer, next: () => number): Buffer {
  let bytes = Buffer.from(packet);
  const rounds = 1 + Math.floor(next() * 3);
  for (let round = 0; round < rounds && bytes.length > 0; round += 1) {
    const at = Math.floor(next() * bytes.length);
    const count = Math.floor(next() * Math.min(16, bytes.length - at));
    switch (Math.floor(next() * 6)) {
      case 0:
        bytes[at]! ^= 1 << Math.floor(next() * 8);
        break;
      case 1:
        bytes[at] = Math.floor(next() * 256);
        break;
      case 2:
        bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + count)]);
        break;
      case 3:
        bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at, at + count), bytes.subarray(at)]);
        break;
      case 4:
        bytes = bytes.subarray(0, at);
        break;
      default:
        // Lengths and packet types are in the first bytes.
        bytes[Math.floor(next() * Math.min(4, bytes.length))] = Math.floor(next() * 256);
    }
  }
  return bytes;
}
