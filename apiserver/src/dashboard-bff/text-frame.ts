// Frames of WebSocket messages, made once and sent to any number of clients: the library would make one for each.

/** The frame that was made last: an alarm or an event, which may be large, goes to thousands of clients one after another. */
let last: { readonly text: string; readonly frame: Buffer } = { text: '', frame: Buffer.of(0x81, 0) };

/**
 * Returns a text message as one frame of a server (RFC 6455, 5.2): complete, neither compressed nor masked. It must not be changed,
 * since others may get the same one.
 */
export function textFrame(text: string): Buffer {
  if (last.text !== text) last = { text, frame: makeFrame(text) };
  return last.frame;
}

function makeFrame(text: string): Buffer {
  const length = Buffer.byteLength(text);
  const headLength = length < 126 ? 2 : length < 0x1_0000 ? 4 : 10;
  const frame = Buffer.allocUnsafe(headLength + length);
  frame[0] = 0x81;
  if (headLength === 2) frame[1] = length;
  else if (headLength === 4) {
    frame[1] = 126;
    frame.writeUInt16BE(length, 2);
  } else {
    frame[1] = 127;
    frame.writeUInt32BE(0, 2);
    frame.writeUInt32BE(length, 6);
  }
  frame.write(text, headLength);
  return frame;
}
