// Passes points on to their listeners. Many points for many listeners would occupy the process for seconds, so they are passed on
// a little at a time, with others in between, and tenants take turns.

/** Receives the committed points of a device from one flush in order of arrival, each as the JSON of a LivePoint. */
export type LiveListener = (deviceId: string, points: readonly string[]) => void;

/** Points times listeners that are passed on at once. */
const atOnce = 1000;
const turnMilliseconds = 5;
/** Characters that may wait for the listeners of a tenant; the oldest are left out beyond them. */
const mostWaiting = 4 * 2 ** 20;

/** Points that wait for their listeners. */
interface Waiting {
  readonly deviceId: string;
  readonly points: readonly string[];
  readonly characters: number;
  readonly listeners: ReadonlySet<LiveListener>;
  /** Those that have not got them; undefined: none has. */
  left?: Iterator<LiveListener>;
}

/** What waits for the listeners of one tenant, oldest first. */
interface Line {
  readonly waiting: Waiting[];
  characters: number;
}

/** Passes points on. Those of a tenant stay in order. */
export class LiveTurns {
  /** By tenant; the first one is next. */
  private readonly lines = new Map<string, Line>();
  private isRunning = false;

  /** Passes points of the device `tenant/device` on to its listeners, soon if there are many. */
  deliver(key: string, points: readonly string[], listeners: ReadonlySet<LiveListener>): void {
    const slash = key.indexOf('/');
    const [tenantId, deviceId] = [key.slice(0, slash), key.slice(slash + 1)];
    const known = this.lines.get(tenantId);
    if (!known && points.length * listeners.size <= atOnce) {
      for (const listener of listeners) listener(deviceId, points);
      return;
    }
    const line = known ?? { waiting: [], characters: 0 };
    this.lines.set(tenantId, line);
    const characters = points.reduce((sum, point) => sum + point.length, 0);
    line.waiting.push({ deviceId, points, characters, listeners });
    line.characters += characters;
    while (line.characters > mostWaiting && line.waiting.length > 1) leave(line);
    if (!this.isRunning) this.goOn();
  }

  private goOn(): void {
    this.isRunning = this.lines.size > 0;
    if (this.isRunning) setImmediate(() => this.turn());
  }

  private turn(): void {
    const end = performance.now() + turnMilliseconds;
    for (const [tenantId, line] of this.lines) {
      this.lines.delete(tenantId);
      do passOn(line);
      while (line.waiting.length > 0 && performance.now() < end);
      if (line.waiting.length > 0) this.lines.set(tenantId, line);
      if (performance.now() >= end) break;
    }
    this.goOn();
  }
}

/** Passes the oldest points on to the next listener. */
function passOn(line: Line): void {
  const [oldest] = line.waiting;
  if (!oldest) return;
  oldest.left ??= oldest.listeners.values();
  const next = oldest.left.next();
  if (next.done === true) leave(line);
  else next.value(oldest.deviceId, oldest.points);
}

function leave(line: Line): void {
  line.characters -= line.waiting.shift()!.characters;
}
