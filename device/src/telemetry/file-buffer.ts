// Points on disk: lines of JSON in numbered files. A point survives `kill -9` from the moment it is added, because it has
// been given to the operating system; with `sync` also a loss of power.
import fs from 'node:fs';
import path from 'node:path';
import type { Point } from '../messages.ts';
import { writeAtomically } from '../write-atomically.ts';
import type { Batch, TelemetryBuffer } from './buffer.ts';

/** Settings of a buffer on disk. */
export interface FileBufferOptions {
  /** Size of all files; 16 MiB if it is not given. */
  maximumBytes?: number;
  /** Waits for the disk after each point, so that points survive a loss of power. */
  sync?: boolean;
}

/** A file: the points from `first` on. */
interface Segment {
  /** Position of the first point, which is also the name of the file. */
  readonly first: number;
  count: number;
  bytes: number;
}

const newline = 0x0a;
const nameOf = (first: number): string => `${String(first).padStart(16, '0')}.ndjson`;

/**
 * A buffer in a folder that no other process uses. The position up to which points are sent is written after they have
 * been acknowledged, so after a crash the last ones may be sent again.
 */
export class FileBuffer implements TelemetryBuffer {
  dropped = 0;
  private readonly folder: string;
  private readonly maximumBytes: number;
  private readonly segmentBytes: number;
  private readonly sync: boolean;
  /** Oldest first; the last one is being written. */
  private readonly segments: Segment[] = [];
  /** Position of the oldest point that is not sent. */
  private start = 0;
  /** The points of the oldest file with points to send; undefined are damaged ones. */
  private head: { segment: Segment; points: (Point | undefined)[] } | undefined;
  private file: number | undefined;

  constructor(folder: string, { maximumBytes = 16 * 1024 * 1024, sync = false }: FileBufferOptions = {}) {
    this.folder = folder;
    this.maximumBytes = maximumBytes;
    this.segmentBytes = Math.max(1, Math.floor(maximumBytes / 8));
    this.sync = sync;
    fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
    this.recover();
  }

  get size(): number {
    return this.segments.reduce((total, segment) => total + this.unsent(segment), 0);
  }

  add(point: Point): void {
    const line = Buffer.from(`${JSON.stringify(point)}\n`);
    const segment = this.writable(line.length);
    try {
      // A full disk causes a short write, which leaves part of a line.
      if (fs.writeSync(this.file!, line) < line.length) throw new Error('the disk is full');
      if (this.sync) fs.fdatasyncSync(this.file!);
    } catch (error) {
      fs.ftruncateSync(this.file!, segment.bytes);
      throw error;
    }
    segment.bytes += line.length;
    segment.count += 1;
    if (this.head?.segment === segment) this.head.points.push(point);
    while (this.segments.length > 1 && this.segments.reduce((sum, { bytes }) => sum + bytes, 0) > this.maximumBytes) {
      this.dropOldest();
    }
  }

  peek(maximumPoints: number): Batch {
    for (;;) {
      const segment = this.segments.find((one) => this.unsent(one) > 0);
      if (!segment) return { points: [], end: this.start };
      this.start = Math.max(this.start, segment.first);
      if (this.head?.segment !== segment) this.head = { segment, points: this.read(segment) };
      const from = this.start - segment.first;
      const lines = this.head.points.slice(from, from + maximumPoints);
      const points = lines.filter((point) => point !== undefined);
      if (points.length > 0) return { points, end: this.start + lines.length };
      this.remove(this.start + lines.length);
    }
  }

  remove(end: number): void {
    if (end <= this.start) return;
    this.start = end;
    while (this.segments.length > 1 && this.unsent(this.segments[0]!) === 0) this.unlinkOldest();
    this.saveStart();
  }

  close(): void {
    if (this.file !== undefined) fs.closeSync(this.file);
    this.file = undefined;
  }

  /** Number of points of a file that are not sent. */
  private unsent({ first, count }: Segment): number {
    return Math.max(0, first + count - Math.max(first, this.start));
  }

  /** Returns the file to which a line can be added, and opens it. */
  private writable(bytes: number): Segment {
    const last = this.segments.at(-1);
    if (last && (last.bytes === 0 || last.bytes + bytes <= this.segmentBytes)) {
      this.file ??= fs.openSync(this.pathOf(last), 'a', 0o600);
      return last;
    }
    this.close();
    const segment = { first: last ? last.first + last.count : this.start, count: 0, bytes: 0 };
    this.file = fs.openSync(this.pathOf(segment), 'a', 0o600);
    this.segments.push(segment);
    return segment;
  }

  private dropOldest(): void {
    const oldest = this.segments[0]!;
    this.dropped += this.unsent(oldest);
    this.start = Math.max(this.start, oldest.first + oldest.count);
    this.unlinkOldest();
    this.saveStart();
  }

  private unlinkOldest(): void {
    const oldest = this.segments.shift()!;
    if (this.head?.segment === oldest) this.head = undefined;
    fs.rmSync(this.pathOf(oldest), { force: true });
  }

  private saveStart(): void {
    writeAtomically(path.join(this.folder, 'sent'), `${this.start}\n`, { sync: this.sync });
  }

  private pathOf({ first }: Segment): string {
    return path.join(this.folder, nameOf(first));
  }

  /** Reads the points of a file. Those that are damaged are undefined, and count as dropped. */
  private read(segment: Segment): (Point | undefined)[] {
    const lines = fs.readFileSync(this.pathOf(segment), 'utf8').split('\n').slice(0, segment.count);
    const points = lines.map(parsed);
    const unsent = points.slice(Math.max(0, this.start - segment.first));
    this.dropped += unsent.filter((point) => point === undefined).length;
    return points;
  }

  /** Finds the points of an earlier process. */
  private recover(): void {
    const names = fs.readdirSync(this.folder).filter((name) => /^\d{16}\.ndjson$/.test(name));
    for (const name of names.sort()) {
      const file = path.join(this.folder, name);
      const content = fs.readFileSync(file);
      // The process may have been killed within a line, which was then never acknowledged to the program.
      const bytes = content.lastIndexOf(newline) + 1;
      if (bytes < content.length) fs.truncateSync(file, bytes);
      let count = 0;
      for (let at = content.indexOf(newline); at >= 0; at = content.indexOf(newline, at + 1)) count += 1;
      this.segments.push({ first: Number(name.slice(0, 16)), count, bytes });
    }
    let sent = '';
    try {
      sent = fs.readFileSync(path.join(this.folder, 'sent'), 'utf8');
    } catch (error) {
      if ((error as { code?: string }).code !== 'ENOENT') throw error;
    }
    // A damaged position could skip points, so all of them are sent again.
    this.start = /^\d{1,15}\n$/.test(sent) ? Number(sent) : (this.segments[0]?.first ?? 0);
    const last = this.segments.at(-1);
    if (last && last.first + last.count < this.start) {
      // The disk has lost points that were already sent: new ones must not get their positions.
      for (const segment of this.segments.splice(0)) fs.rmSync(this.pathOf(segment));
    }
  }
}

function parsed(line: string): Point | undefined {
  try {
    const point: unknown = JSON.parse(line);
    return typeof point === 'object' && point !== null && 'timestamp' in point ? (point as Point) : undefined;
  } catch {
    return undefined;
  }
}
