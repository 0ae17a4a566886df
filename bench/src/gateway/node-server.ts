// The baseline: only node:http and JSON. GET returns the sample of its path, POST /echo returns the parsed and reserialised
// body, and any other POST parses the body and returns its number of points.
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { deviceJson, latestJson } from '../samples/request-bodies.ts';
import { serveParent } from './measured-server.ts';

const samples: Readonly<Record<string, object>> = {
  '/device': deviceJson,
  '/latest': latestJson,
  '/commands': { commands: [] },
};

await serveParent(async () => {
  const server = createServer((request, response) => {
    if (request.method === 'GET') return reply(response, samples[request.url!]);
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const body = JSON.parse(Buffer.concat(chunks).toString()) as { points: unknown[] };
      reply(response, request.url === '/echo' ? body : { accepted: body.points.length, rejected: 0, errors: [] });
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port };
});

function reply(response: ServerResponse, value: unknown): void {
  const body = JSON.stringify(value);
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }).end(body);
}
