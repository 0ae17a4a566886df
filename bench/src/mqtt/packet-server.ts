// The baseline of mqtt-vs-mosquitto without an installed Mosquitto: a bare server on mqtt-packet that accepts CONNECT and
// acknowledges each PUBLISH at once, and stores nothing.
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { generate, parser } from 'mqtt-packet';
import { serveParent } from '../gateway/measured-server.ts';

await serveParent(async () => {
  const server = createServer((socket) => {
    const packets = parser({ protocolVersion: 4 });
    packets.on('packet', (packet) => {
      if (packet.cmd === 'connect') socket.write(generate({ cmd: 'connack', sessionPresent: false, returnCode: 0 }));
      else if (packet.cmd === 'publish') socket.write(generate({ cmd: 'puback', messageId: packet.messageId! }));
    });
    socket.on('data', (chunk: Buffer) => packets.parse(chunk));
    socket.on('error', () => undefined);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port };
});
