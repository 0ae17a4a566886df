// Seeded mutations of bytes, for tests.

/** Returns whole numbers in [0, bound). */
export type Below = (bound: number) => number;

/** Returns a generator that is reproducible by seed (mulberry32). */
export function seeded(seed: number): Below {
  let state = seed >>> 0;
  return (bound) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * bound);
  };
}

/** Returns a copy of `bytes` with one to four changes: bits flipped, bytes set, removed, inserted or repeated. */
export function mutate(bytes: Uint8Array, below: Below): Uint8Array {
  let mutated = bytes;
  for (let changes = 1 + below(4); changes > 0; changes--) mutated = mutateOnce(mutated, below);
  return mutated;
}

function mutateOnce(bytes: Uint8Array, below: Below): Uint8Array {
  const at = below(bytes.length + 1);
  const length = 1 + below(below(5) > 0 ? 4 : 64);
  const joined = (inserted: Uint8Array, rest: number) =>
    Uint8Array.from(Buffer.concat([bytes.subarray(0, at), inserted, bytes.subarray(rest)]));
  const kind = below(6);
  if (kind === 0) return joined(new Uint8Array(0), at + length);
  if (kind === 1)
    return joined(
      Uint8Array.from({ length }, () => below(256)),
      at,
    );
  if (kind === 2) return joined(new Uint8Array(0), Math.max(0, at - length));
  const changed = Uint8Array.from(bytes);
  if (at < bytes.length)
    changed[at] = kind === 3 ? [0, 1, 0x7f, 0xfd, 0xfe, 0xff][below(6)]! : changed[at]! ^ (1 << below(8));
  return changed;
}
