// Reads the body of an ingest request without an object per value: each point is found to have a known form (point-form.ts), and
// its canonical payload is written where its row will be. The general path (gateway/transcoding, then points/validate.ts) remains
// the definition: for everything unusual this returns undefined, and that path decodes the body or words the error.
import { isUtf8 } from 'node:buffer';
import { rowHeadBytes, rowTailBytes } from '../points/point-row.ts';
import type { DeviceTime } from '../points/timestamp.ts';
import { pointLimits } from '../points/validate.ts';
import { type DeviceId, deviceIdAt, idLength } from './device-ids.ts';
import { endOfNumber } from './number-token.ts';
import { isSpace, learnPointForm, type PointForm, valueKinds } from './point-form.ts';
import { RowArea } from './row-areas.ts';
import { RowPoint } from './row-point.ts';
import { readTime } from './time-token.ts';

/** Longest tenant id for whose rows there is room. */
export const longestTenantId = 63;

/** The points of a body, and the areas in which their rows are. */
export interface ScannedBody {
  readonly points: readonly RowPoint[];
  readonly areas: readonly RowArea[];
}

/** The device and the time (in milliseconds since 1970) of points that do not name them. */
export interface PointDefaults {
  readonly deviceId: string;
  readonly now: number;
}

/**
 * Returns what is in a body `{"points":[…]}`, or undefined if it has no points, too many, or anything unusual. With
 * `defaults` the body may also be a single point.
 */
export function scanBody(body: Uint8Array, maximumPoints: number, defaults?: PointDefaults): ScannedBody | undefined {
  const scanner = new Scanner(Buffer.from(body.buffer, body.byteOffset, body.byteLength), defaults);
  const points = scanner.scan(maximumPoints);
  if (points) return { points, areas: scanner.areas };
  for (const area of scanner.areas) area.release();
  return undefined;
}

const timeOf = (milliseconds: number): DeviceTime => ({
  seconds: Math.floor(milliseconds / 1000),
  nanoseconds: (milliseconds % 1000) * 1e6,
});

const headRoom = rowHeadBytes(longestTenantId);
const longestNumber = 26;
const tokens = (...texts: string[]) => texts.map((text) => Buffer.from(text));
const openings = tokens('{', '"points"', ':', '[');
const closings = tokens(']', '}');

/** Forms of the last points, most recent first. */
let recent: readonly PointForm[] = [];
const maximumRecent = 8;
/** Forms that are learnt from one body: reading a new form takes longer than the general path does. */
const maximumLearnt = 16;

/** Start and end of each value of the current point. */
const spans = new Int32Array((pointLimits.keys + 2) * 2);
/** Whether the text of each number must be made from its value. */
const isRewritten = new Uint8Array(pointLimits.keys + 2);

class Scanner {
  private readonly body: Buffer;
  /** The current position. */
  private at = 0;
  private hasHighByte = false;
  /** Whether a number of the current point is rewritten. */
  private hasRewritten = false;
  readonly areas: RowArea[] = [];
  private area: RowArea;
  private rows: Buffer;
  private rowsEnd = 0;
  /** The device of the current point. */
  private device: DeviceId | undefined;
  private learnt = 0;
  private readonly defaultDevice: DeviceId | undefined;
  private readonly defaultTime: DeviceTime | undefined;
  private readonly mayBeSingle: boolean;

  constructor(body: Buffer, defaults: PointDefaults | undefined) {
    this.body = body;
    this.mayBeSingle = defaults !== undefined;
    this.defaultDevice = defaults && deviceIdAt(Buffer.from(defaults.deviceId, 'latin1'), 0);
    this.defaultTime = defaults && timeOf(defaults.now);
    this.area = this.addArea(512 + body.length * 2);
    this.rows = this.area.inUse;
  }

  scan(maximumPoints: number): RowPoint[] | undefined {
    if (!this.takeAll(openings)) return this.mayBeSingle ? this.scanSingle() : undefined;
    const points: RowPoint[] = [];
    do {
      this.skipSpace();
      const form = points.length < maximumPoints ? this.matchPoint() : undefined;
      const point = form && this.point(form);
      if (!point) return undefined;
      points.push(point);
      this.skipSpace();
    } while (this.take(0x2c));
    return this.takeAll(closings) && this.isWhole() ? points : undefined;
  }

  private scanSingle(): RowPoint[] | undefined {
    this.at = 0;
    this.skipSpace();
    const form = this.matchPoint();
    const point = form && this.point(form);
    return point && this.isWhole() ? [point] : undefined;
  }

  /** Reports whether nothing follows, and everything is UTF-8. */
  private isWhole(): boolean {
    this.skipSpace();
    return this.at === this.body.length && !(this.hasHighByte && !isUtf8(this.body));
  }

  private take(byte: number): boolean {
    if (this.body[this.at] !== byte) return false;
    this.at += 1;
    return true;
  }

  private takeAll(texts: readonly Uint8Array[]): boolean {
    return texts.every((text) => {
      this.skipSpace();
      return text.every((byte) => this.take(byte));
    });
  }

  private skipSpace(): void {
    while (isSpace(this.body[this.at])) this.at += 1;
  }

  /** Moves past a point and returns its form, or undefined. */
  private matchPoint(): PointForm | undefined {
    const [first] = recent;
    if (first && this.matches(first)) return first;
    for (const form of recent.slice(1)) {
      if (!this.matches(form)) continue;
      recent = [form, ...recent.filter((other) => other !== form)];
      return form;
    }
    const learnt = this.learnt < maximumLearnt ? learnPointForm(this.body, this.at) : undefined;
    this.learnt += 1;
    if (!learnt || !this.matches(learnt)) return undefined;
    recent = [learnt, ...recent].slice(0, maximumRecent);
    return learnt;
  }

  /** Reports whether the point at the current position has a form, and moves past it if so. */
  private matches({ literals, kinds }: PointForm): boolean {
    const { body } = this;
    let { at } = this;
    this.hasRewritten = false;
    for (let value = 0; ; value += 1) {
      const literal = literals[value]!;
      const { length } = literal;
      if (at + length > body.length) return false;
      for (let index = 0; index < length; index += 1) if (body[at + index] !== literal[index]) return false;
      at += length;
      if (value === kinds.length) break;
      const end = this.endOfValue(kinds[value]!, at, value);
      if (end < 0) return false;
      spans[value * 2] = at;
      spans[value * 2 + 1] = end;
      at = end;
    }
    this.at = at;
    return true;
  }

  /** Returns where a value ends, or -1 if it is invalid or unusual. */
  private endOfValue(kind: number, at: number, value: number): number {
    if (kind === valueKinds.number) {
      const end = endOfNumber(this.body, at);
      isRewritten[value] = end < 0 ? 1 : 0;
      if (end < 0) this.hasRewritten = true;
      return end === 0 ? -1 : Math.abs(end);
    }
    if (kind === valueKinds.device) {
      this.device = deviceIdAt(this.body, at);
      return this.device ? at + idLength : -1;
    }
    return this.endOfText(at);
  }

  private endOfText(at: number): number {
    const { body } = this;
    let end = at;
    let bits = 0;
    for (; end < body.length; end += 1) {
      const byte = body[end]!;
      if (byte === 0x22) break;
      if (byte < 0x20 || byte === 0x5c) return -1;
      bits |= byte;
    }
    if (bits >= 0x80) this.hasHighByte = true;
    return end - at > pointLimits.textBytes ? -1 : end;
  }

  /** Returns the point that was matched last, or undefined. */
  private point(form: PointForm): RowPoint | undefined {
    const device = form.hasDevice ? this.device : this.defaultDevice;
    const at = form.timestamp;
    const time = at < 0 ? this.defaultTime : readTime(this.body, spans[at * 2]!, spans[at * 2 + 1]!);
    if (!time || !device) return undefined;
    const { order, texts, isCanonical } = form;
    const isCopy = isCanonical && !(this.hasRewritten && this.isAnyRewritten(form));
    this.makeRoom(form.ownBytes + form.numbers * longestNumber + this.at - spans[0]!);
    const payloadStart = this.rowsEnd + headRoom;
    const payloadEnd = isCopy
      ? this.copyPayload(spans[order[0]! * 2]! - texts[0]!.length + 1, payloadStart)
      : this.writePayload(form, payloadStart);
    if (payloadEnd < 0) return undefined;
    this.rowsEnd = payloadEnd + rowTailBytes;
    return new RowPoint(device, time, form, { area: this.area, payloadStart, payloadEnd });
  }

  /** Copies the payload of the point that was matched last, all but whose first byte begins at `from`. Returns its end. */
  private copyPayload(from: number, to: number): number {
    this.rows[to] = 0x7b;
    return to + 1 + this.body.copy(this.rows, to + 1, from, this.at);
  }

  /** Writes the payload of the point that was matched last and returns its end, or -1 if it is unusual. */
  private writePayload({ order, texts, kinds }: PointForm, to: number): number {
    const { body, rows } = this;
    let at = to;
    for (let index = 0; index < texts.length; index += 1) {
      const text = texts[index]!;
      rows.set(text, at);
      at += text.length;
      if (index === order.length) break;
      const value = order[index]!;
      const start = spans[value * 2]!;
      const end = spans[value * 2 + 1]!;
      if (kinds[value] === valueKinds.number && isRewritten[value] === 1) {
        const number = Number(body.toString('latin1', start, end));
        if (!Number.isFinite(number)) return -1;
        at += rows.write(String(number), at, 'latin1');
      } else at += body.copy(rows, at, start, end);
    }
    return at;
  }

  /** Reports whether the canonical text of a number differs from what was sent. */
  private isAnyRewritten({ order, kinds }: PointForm): boolean {
    for (let index = 0; index < order.length; index += 1) {
      const value = order[index]!;
      if (kinds[value] !== valueKinds.number || isRewritten[value] === 0) continue;
      const text = this.body.toString('latin1', spans[value * 2], spans[value * 2 + 1]);
      if (String(Number(text)) !== text) return true;
      isRewritten[value] = 0;
    }
    return false;
  }

  /** Makes room for a payload of at most so many bytes and what is around it. */
  private makeRoom(bytes: number): void {
    const needed = headRoom + bytes + rowTailBytes;
    if (this.rowsEnd + needed <= this.rows.length) return;
    // The points read so far stay where they are.
    this.area = this.addArea(Math.max(needed, this.rows.length));
    this.rows = this.area.inUse;
    this.rowsEnd = 0;
  }

  private addArea(bytes: number): RowArea {
    const area = new RowArea(bytes);
    this.areas.push(area);
    return area;
  }
}
