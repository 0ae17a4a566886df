// Messages of telemetry.live, built once for all subscribers of a device.
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

const made = new WeakMap<readonly string[], LiveMessages>();

/** Returns `{"channel":"telemetry.live","device_id":…,"point":{…}}` for each point (the JSON of a LivePoint); there is at least one. */
export function liveMessages(deviceId: string, points: readonly string[]): LiveMessages {
  let messages = made.get(points);
  if (!messages) {
    const frames = points.map((point) =>
      textFrame(`{"channel":"telemetry.live","device_id":"${deviceId}","point":${point}}`),
    );
    messages = { pieces: inPieces(frames), last: frames.at(-1)! };
    made.set(points, messages);
  }
  return messages;
}

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
