import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { expect } from 'chai';
import { WebSocket, WebSocketServer } from 'ws';
import { textFrame } from './text-frame.ts';

describe('textFrame', () => {
  it('makes one frame for the same text to many clients', () => {
    const [text, other] = ['x'.repeat(100_000), 'y'];
    const frame = textFrame(text);
    for (let client = 0; client < 3; client += 1) expect(textFrame(text)).to.equal(frame);
    expect(textFrame(other).subarray(2).toString()).to.equal(other);
    expect(textFrame(text)).to.deep.equal(frame);
    expect(textFrame('')).to.deep.equal(Buffer.of(0x81, 0));
  });

  it('makes frames that a client of the library reads, of every form of length', async () => {
    const lengths = [0, 1, 125, 126, 127, 65_535, 65_536, 200_000];
    const texts = [...lengths.map((length) => 'x'.repeat(length)), 'läuft', '\u{1f600}'.repeat(100)];
    const server = createServer();
    const sockets = new WebSocketServer({ server, perMessageDeflate: false });
    sockets.on('connection', (socket, { socket: stream }: { socket: Socket }) => {
      for (const text of texts) stream.write(textFrame(text));
      // One of the library's own after them.
      socket.send('end');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const client = new WebSocket(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`);
    try {
      const received: string[] = [];
      await new Promise<void>((resolve, reject) => {
        client.on('error', reject);
        client.on('message', (data, isBinary) => {
          received.push(isBinary ? 'binary' : (data as Buffer).toString());
          if (received.at(-1) === 'end') resolve();
        });
      });
      expect(received).to.deep.equal([...texts, 'end']);
    } finally {
      client.terminate();
      sockets.close();
      server.close();
    }
  });
});
