// Reads responses of third-party servers with a size limit, so that an endless response does not exhaust memory.

/** Returns the body of a response as text. Throws and closes the connection if it has more than `most` bytes. */
export async function readText(response: Response, most: number): Promise<string> {
  if (!response.body) return '';
  const parts: Uint8Array[] = [];
  let length = 0;
  // Leaving the loop cancels the body.
  for await (const part of response.body as AsyncIterable<Uint8Array>) {
    length += part.length;
    if (length > most) throw new Error(`the response is longer than ${most} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts).toString('utf8');
}
