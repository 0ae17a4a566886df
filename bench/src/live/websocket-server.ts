// The baseline of fanout-vs-ws: bare `ws`, which sends the body of each POST to all of its clients; at /shared as one frame
// that is made once, else by the library's `send`.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { type WebSocket, WebSocketServer } from 'ws';
import { serveParent } from '../gateway/measured-server.ts';

/** `ws` keeps the socket of a client here, without a public name. */
type Connected = WebSocket & { readonly _socket: Socket };

/** Returns a text message as a server frames it (RFC 6455, 5.2). */
function textFrame(body: Buffer): Buffer {
  if (body.length < 126 || body.length > 0xffff) throw new RangeError('a body must have 126 to 65,535 bytes');
  const head = Buffer.from([0x81, 126, 0, 0]);
  head.writeUInt16BE(body.length, 2);
  return Buffer.concat([head, body]);
}

await serveParent(async () => {
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const body = Buffer.concat(chunks);
      if (request.url === '/shared') {
        const frame = textFrame(body);
        for (const client of sockets.clients) (client as Connected)._socket.write(frame);
      } else {
        const text = body.toString();
        for (const client of sockets.clients) client.send(text);
      }
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': 2 }).end('{}');
    });
  });
  const sockets = new WebSocketServer({ server, perMessageDeflate: false });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port };
});
