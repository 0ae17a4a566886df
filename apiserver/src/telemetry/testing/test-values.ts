// Reproducible numbers and texts for property tests, reaching the corner cases of JSON.

/** Returns a generator of numbers in [0, 1), reproducible by seed (mulberry32). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const pieces = [
  'a',
  'Z',
  '0',
  ' ',
  '"',
  '\\',
  '/',
  '\n',
  '\u0001',
  '\u007f',
  '\u0080',
  'ö',
  '€',
  '\u2028',
  '😀',
  '\ufb33',
];

/** Returns well-formed text without NUL, up to seven characters. */
export function randomText(random: () => number): string {
  let text = '';
  for (let length = Math.floor(random() * 8); length > 0; length -= 1) {
    text += pieces[Math.floor(random() * pieces.length)]!;
  }
  return text;
}

/** Returns a finite double of any magnitude. */
export function randomNumber(random: () => number): number {
  const view = new DataView(new ArrayBuffer(8));
  for (;;) {
    const shape = random();
    if (shape < 0.3) return Math.floor(random() * 2000) - 1000;
    if (shape < 0.6) return Math.round(random() * 1e6) / 1000;
    view.setUint32(0, random() * 4294967296);
    view.setUint32(4, random() * 4294967296);
    const value = view.getFloat64(0);
    if (Number.isFinite(value)) return value;
  }
}
