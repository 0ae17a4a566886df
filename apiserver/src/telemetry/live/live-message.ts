// Points on their way from the process that committed them to one where their device is watched. Text of lines: a device's line,
// then a line of JSON for each of its points; JSON.stringify writes no line breaks of its own.

/** Longest message in characters: a message of NATS has at most 1 MiB, and a character at most three bytes. */
export const mostCharacters = 256 * 1024;

const devicePrefix = '@';

/** The lines of a device's points, in texts of at most so many characters unless a single point has more. */
export function encodePoints(key: string, points: readonly string[], most = mostCharacters): string[] {
  const first = `${devicePrefix}${key}\n`;
  return joinTexts(points, most - first.length, '\n').map((lines) => `${first}${lines}\n`);
}

/** Joins texts by a separator into texts of at most so many characters, unless one alone has more. */
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

/** Hands out what encodePoints wrote, once or several times, device by device in the same order. */
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
