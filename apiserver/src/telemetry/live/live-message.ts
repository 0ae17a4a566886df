// Encodes points for transport from the process that committed them to a process where their device is watched. The
// format is line-based: a line naming the device, then one line of JSON per point. JSON.stringify emits no line breaks.

/** Maximum message length in characters. NATS allows 1 MiB per message, and a character takes at most three bytes. */
export const maxCharacters = 256 * 1024;

const devicePrefix = '@';

/** Encodes a device's points as texts of at most `most` characters; only a single point that is longer exceeds it. */
export function encodePoints(key: string, points: readonly string[], most = maxCharacters): string[] {
  const first = `${devicePrefix}${key}\n`;
  return joinTexts(points, most - first.length, '\n').map((lines) => `${first}${lines}\n`);
}

/**
 * Joins items with a separator into texts of at most `most` characters; only a single item that is longer exceeds it.
 */
export function joinTexts(items: readonly string[], most: number, separator: string): string[] {
  const joined: string[] = [];
  let text = '';
  for (const item of items) {
    if (text !== '' && text.length + separator.length + item.length > most) {
      joined.push(text);
      text = '';
    }
    text = text === '' ? item : text + separator + item;
  }
  if (text !== '') joined.push(text);
  return joined;
}

/** Decodes the output of encodePoints, one or more texts concatenated, delivering the devices in order. */
export function decodePoints(text: string, deliver: (key: string, points: readonly string[]) => void): void {
  let key = '';
  let points: string[] = [];
  const finish = (): void => {
    if (points.length > 0) deliver(key, points);
    points = [];
  };
  for (const line of text.split('\n')) {
    if (line.startsWith(devicePrefix)) {
      finish();
      key = line.slice(devicePrefix.length);
    } else if (line !== '') points.push(line);
  }
  finish();
}
