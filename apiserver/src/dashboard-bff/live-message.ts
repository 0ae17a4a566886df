// Messages of telemetry.live, built once for all subscribers of a device.
import type { LivePoint } from '../telemetry/live/live.ts';
import { textFrame } from './text-frame.ts';

/** Bytes of frames that are written together. */
const pieceBytes = 16 * 1024;

/** Messages in order. */
export interface LiveMessages {
  /** Their frames, several in a piece: a client that keeps up gets all. */
  readonly pieces: readonly Buffer[];
  /** The frame of the last one, which stands for all to a client that does not. */
  readonly last: Buffer;
}

/** What is shown of the device of a point: its name, type and tags, or nothing. */
export type ShownDevice = 'device' | 'no device';

const made = {
  device: new WeakMap<readonly string[], LiveMessages>(),
  'no device': new WeakMap<readonly string[], LiveMessages>(),
};

/** Returns `{"channel":"telemetry.live","device_id":…,"point":{…}}` for each point (the JSON of a LivePoint); there is at least one. */
export function liveMessages(deviceId: string, points: readonly string[], shown: ShownDevice): LiveMessages {
  let messages = made[shown].get(points);
  if (!messages) {
    const texts = shown === 'device' ? points : points.map(withoutDevice);
    const frames = texts.map((point) =>
      textFrame(`{"channel":"telemetry.live","device_id":"${deviceId}","point":${point}}`),
    );
    messages = { pieces: inPieces(frames), last: frames.at(-1)! };
    made[shown].set(points, messages);
  }
  return messages;
}

const withoutDevice = (point: string): string =>
  JSON.stringify({ ...(JSON.parse(point) as Partial<LivePoint>), device_name: '', device_type: '', tags: {} });

function inPieces(frames: readonly Buffer[]): Buffer[] {
  const pieces: Buffer[] = [];
  for (let first = 0; first < frames.length;) {
    let end = first;
    for (let bytes = 0; end < frames.length && (end === first || bytes + frames[end]!.length <= pieceBytes); end += 1) {
      bytes += frames[end]!.length;
    }
    pieces.push(end === first + 1 ? frames[first]! : Buffer.concat(frames.slice(first, end)));
    first = end;
  }
  return pieces;
}
