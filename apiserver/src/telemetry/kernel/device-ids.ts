// The ids of devices in bodies. The same devices send again and again: their ids become text once, so that the hash by which maps
// find them is computed once, too.
import type { DeviceReference } from '../points/devices.ts';

/** A device's id. */
export class DeviceId implements DeviceReference {
  /** Its 16 bytes as signed numbers, big-endian. */
  readonly first: number;
  readonly second: number;
  readonly third: number;
  readonly fourth: number;
  /** In lower case. */
  readonly text: string;
  found: unknown = undefined;
  private tenantId = '';
  private key = '';

  constructor(text: string, first: number, second: number, third: number, fourth: number) {
    this.first = first;
    this.second = second;
    this.third = third;
    this.fourth = fourth;
    this.text = text;
  }

  /** Returns `tenant/device`, mostly the same string as the last time. */
  keyIn(tenantId: string): string {
    if (this.tenantId !== tenantId) {
      this.tenantId = tenantId;
      this.key = `${tenantId}/${this.text}`;
    }
    return this.key;
  }
}

/** The length of an id as text. */
export const idLength = 36;

/** Bounds the memory, at about 200 bytes for each: a fleet with more devices pays for some of the texts. */
const places = 2 ** 18;
/** Each id has two places, by its last digits, which it shares with others. The one that was found last is in the first. */
const known = new Array<DeviceId | undefined>(places).fill(undefined);

const notDigit = 0x10000;
/** The value of each hexadecimal digit in lower case; `notDigit` for other bytes. */
const digits = Int32Array.from({ length: 256 }, (_, byte) => {
  const value = '0123456789abcdef'.indexOf(String.fromCharCode(byte));
  return value < 0 ? notDigit : value;
});

/** Returns the value of four digits; at least `notDigit` if one of them is not a digit. */
const fourDigits = (body: Uint8Array, at: number): number =>
  (digits[body[at]!]! << 12) | (digits[body[at + 1]!]! << 8) | (digits[body[at + 2]!]! << 4) | digits[body[at + 3]!]!;

/** Returns the UUID in lower case that begins at a position, or undefined. */
export function deviceIdAt(body: Buffer, at: number): DeviceId | undefined {
  if (at + idLength > body.length) return undefined;
  const hyphens = (body[at + 8]! ^ 0x2d) | (body[at + 13]! ^ 0x2d) | (body[at + 18]! ^ 0x2d) | (body[at + 23]! ^ 0x2d);
  const a = fourDigits(body, at);
  const b = fourDigits(body, at + 4);
  const c = fourDigits(body, at + 9);
  const d = fourDigits(body, at + 14);
  const e = fourDigits(body, at + 19);
  const f = fourDigits(body, at + 24);
  const g = fourDigits(body, at + 28);
  const h = fourDigits(body, at + 32);
  if (hyphens !== 0 || (a | b | c | d | e | f | g | h) >= notDigit) return undefined;
  const first = (a << 16) | b;
  const second = (c << 16) | d;
  const third = (e << 16) | f;
  const fourth = (g << 16) | h;
  const place = (fourth << 1) & (places - 1);
  const held = known[place];
  if (held?.fourth === fourth && held.third === third && held.second === second && held.first === first) return held;
  const other = known[place + 1];
  const isOther = other?.fourth === fourth && other.third === third && other.second === second && other.first === first;
  known[place + 1] = held;
  return (known[place] = isOther
    ? other
    : new DeviceId(body.toString('latin1', at, at + idLength), first, second, third, fourth));
}
