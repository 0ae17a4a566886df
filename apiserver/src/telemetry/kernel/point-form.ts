// The form of a point in JSON: the bytes around its values. The points of a fleet have few forms, so that most points are read by
// comparing bytes. What depends only on the names is decided once for each form.
import { nameViolation, pointLimits } from '../points/validate.ts';
import { endOfNumber } from './number-token.ts';

/** What a value of a point is. */
export const valueKinds = { device: 0, timestamp: 1, number: 2, text: 3 } as const;

/** The form of a point. */
export interface PointForm {
  /** The bytes before each value, in order; the last ones end the point. Those of texts include the opening quotation mark. */
  readonly literals: readonly Uint8Array[];
  /** The kind of each value (`valueKinds`). */
  readonly kinds: Uint8Array;
  /** Whether the point names its device. */
  readonly hasDevice: boolean;
  /** Which value is the timestamp; -1 if there is none. */
  readonly timestamp: number;
  /** The numbers and then the texts as the canonical payload orders them: indexes of values. */
  readonly order: Uint16Array;
  /** The bytes before each of them in the canonical payload; the last ones end it. */
  readonly texts: readonly Uint8Array[];
  /** Bytes of the payload besides its values. */
  readonly ownBytes: number;
  /** Number of numbers. */
  readonly numbers: number;
  /** Whether the payload, but for its first byte, stands in the point as it is if each number does. */
  readonly isCanonical: boolean;
  /** The names in the order of the payload. */
  readonly numericNames: readonly string[];
  readonly stringNames: readonly string[];
  /** Identifies the names of the payload: different forms of the same names share it. */
  readonly names: object;
}

/** A name, and the index of its value. */
interface Named {
  readonly name: string;
  readonly value: number;
}

const fields = ['device_id', 'timestamp', 'numeric_values', 'string_values'] as const;
type Field = (typeof fields)[number];

/**
 * Returns the form of the point whose object begins at `at`. Returns undefined for a point that is invalid or merely unusual:
 * escapes, other fields, null, a name given twice, a name that must be refused.
 */
export function learnPointForm(body: Buffer, at: number): PointForm | undefined {
  try {
    return new Learner(body, at).learn();
  } catch (error) {
    if (error === unusual) return undefined;
    throw error;
  }
}

const unusual = new Error('out of the ordinary');

/** Reads one point. Throws `unusual`. */
class Learner {
  private readonly body: Buffer;
  private at: number;
  /** The end of the previous value. */
  private literalAt: number;
  private readonly literals: Uint8Array[] = [];
  private readonly kinds: number[] = [];
  private readonly numeric: Named[] = [];
  private readonly strings: Named[] = [];

  constructor(body: Buffer, at: number) {
    this.body = body;
    this.at = at;
    this.literalAt = at;
  }

  learn(): PointForm {
    const seen = new Set<Field>();
    this.eachName((name) => {
      const field = fields.find((one) => one === name);
      if (!field || seen.has(field)) throw unusual;
      seen.add(field);
      if (field === 'device_id') this.text(valueKinds.device);
      else if (field === 'timestamp') this.text(valueKinds.timestamp);
      else if (field === 'numeric_values') this.values(this.numeric, () => this.number());
      else this.values(this.strings, () => this.text(valueKinds.text));
    });
    this.endLiteral();
    if (this.kinds.length === 0) throw unusual;
    if (this.numeric.length + this.strings.length > pointLimits.keys) throw unusual;
    return pointFormOf(this.literals, this.kinds, this.numeric, this.strings);
  }

  private values(into: Named[], read: () => void): void {
    const seen = new Set<string>();
    this.eachName((name) => {
      if (seen.has(name) || nameViolation(name) !== undefined) throw unusual;
      seen.add(name);
      into.push({ name, value: this.kinds.length });
      read();
    });
  }

  /** Reads an object; `read` reads the value of each name. */
  private eachName(read: (name: string) => void): void {
    this.expect(0x7b);
    this.skipSpace();
    if (this.body[this.at] === 0x7d) return void (this.at += 1);
    for (;;) {
      this.skipSpace();
      const name = this.name();
      this.skipSpace();
      this.expect(0x3a);
      this.skipSpace();
      read(name);
      this.skipSpace();
      if (this.body[this.at] === 0x7d) return void (this.at += 1);
      this.expect(0x2c);
    }
  }

  /** Reads a name of letters that need no thought. */
  private name(): string {
    this.expect(0x22);
    const start = this.at;
    while (isPlain[this.body[this.at] ?? 0] === 1) this.at += 1;
    const name = this.body.toString('latin1', start, this.at);
    this.expect(0x22);
    return name;
  }

  private text(kind: number): void {
    this.expect(0x22);
    this.beginValue(kind);
    while (this.body[this.at] !== 0x22) {
      const byte = this.body[this.at] ?? 0;
      if (byte < 0x20 || byte === 0x5c) throw unusual;
      this.at += 1;
    }
    this.literalAt = this.at;
    this.at += 1;
  }

  private number(): void {
    this.beginValue(valueKinds.number);
    const end = Math.abs(endOfNumber(this.body, this.at));
    if (end === 0) throw unusual;
    this.at = this.literalAt = end;
  }

  private beginValue(kind: number): void {
    this.endLiteral();
    this.kinds.push(kind);
  }

  private endLiteral(): void {
    this.literals.push(Uint8Array.from(this.body.subarray(this.literalAt, this.at)));
  }

  private expect(byte: number): void {
    if (this.body[this.at] !== byte) throw unusual;
    this.at += 1;
  }

  private skipSpace(): void {
    while (isSpace(this.body[this.at])) this.at += 1;
  }
}

/** Reports whether a byte is white space of JSON. */
export const isSpace = (byte: number | undefined): boolean =>
  byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;

const isPlain = Uint8Array.from({ length: 256 }, (_, byte) =>
  Number(/[\w.:/-]/.test(String.fromCharCode(byte)) && byte < 128),
);

function pointFormOf(
  literals: readonly Uint8Array[],
  kinds: readonly number[],
  numeric: readonly Named[],
  strings: readonly Named[],
): PointForm {
  const sorted = (named: readonly Named[]) => named.toSorted((a, b) => (a.name < b.name ? -1 : 1));
  const [numbers, texts] = [sorted(numeric), sorted(strings)];
  const order = Uint16Array.from([...numbers, ...texts], ({ value }) => value);
  const canonical = canonicalTexts(
    numbers.map(({ name }) => name),
    texts.map(({ name }) => name),
  );
  const numericNames = numbers.map(({ name }) => name);
  const stringNames = texts.map(({ name }) => name);
  return {
    ...{ literals, order, numericNames, stringNames },
    kinds: Uint8Array.from(kinds),
    hasDevice: kinds.includes(valueKinds.device),
    timestamp: kinds.indexOf(valueKinds.timestamp),
    texts: canonical,
    ownBytes: canonical.reduce((sum, text) => sum + text.length, 0),
    numbers: numbers.length,
    isCanonical: standsThere(literals, order, canonical),
    names: namesOf(JSON.stringify([numericNames, stringNames])),
  };
}

/** Returns what stands before each value of a canonical payload, and at its end. */
function canonicalTexts(numericNames: readonly string[], stringNames: readonly string[]): Uint8Array[] {
  const texts = ['{"numeric_values":{'];
  const add = (text: string): void => void (texts[texts.length - 1] += text);
  for (const [index, name] of numericNames.entries()) {
    add(`${index > 0 ? ',' : ''}"${name}":`);
    texts.push('');
  }
  add('},"string_values":{');
  for (const [index, name] of stringNames.entries()) {
    add(`${index > 0 ? ',' : ''}"${name}":"`);
    texts.push('"');
  }
  add('}}');
  return texts.map((text) => Uint8Array.from(Buffer.from(text, 'latin1')));
}

/** Reports whether the values and all between them end the point just as they end the payload. */
function standsThere(literals: readonly Uint8Array[], order: Uint16Array, texts: readonly Uint8Array[]): boolean {
  const first = order[0];
  if (first === undefined || first + order.length + 1 !== literals.length) return false;
  if (order.some((value, index) => value !== first + index)) return false;
  return texts.every((text, index) => {
    const literal = Buffer.from(literals[first + index]!);
    if (index > 0) return literal.equals(text);
    // The object of the point begins elsewhere.
    const rest = text.subarray(1);
    return literal.length >= rest.length && literal.subarray(literal.length - rest.length).equals(rest);
  });
}

/** Bounds the memory of what clients may name: longer lists are compared name by name. */
const maximumNames = 1000;
const longestNames = 2000;
const knownNames = new Map<string, object>();

function namesOf(key: string): object {
  const known = knownNames.get(key);
  if (known) return known;
  if (key.length > longestNames) return {};
  if (knownNames.size >= maximumNames) knownNames.clear();
  const names = {};
  knownNames.set(key, names);
  return names;
}
