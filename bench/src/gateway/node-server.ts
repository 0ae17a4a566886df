// The baseline: what node:http and JSON cost alone. GET answers the sample device; POST /echo answers the body it was given,
// parsed and written again; any other POST parses the body and answers how many points it held.
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { serveParent } from './measured-server.ts';
import { deviceJson } from './samples.ts';

await serveParent(async () => {
  const server = createServer((request, response) => {
    if (request.method === 'GET') return answer(response, deviceJson);
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const body = JSON.parse(Buffer.concat(chunks).toString()) as { points: unknown[] };
      answer(response, request.url === '/echo' ? body : { accepted: body.points.length, rejected: 0, errors: [] });
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port };
});

function answer(response: ServerResponse, value: unknown): void {
  const body = JSON.stringify(value);
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }).end(body);
}
