// The baseline of chunk-vs-node: bare node:http that reads 64 KiB of a file, from the offset in the path.
import { once } from 'node:events';
import { open } from 'node:fs/promises';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { chunkBytes } from '../../../apiserver/src/device-link/ota/artifacts/artifact-store.ts';
import { serveParent } from '../gateway/measured-server.ts';

await serveParent(async ({ file }) => {
  const handle = await open(file!);
  const reply = async (response: ServerResponse, offset: number): Promise<void> => {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(chunkBytes), 0, chunkBytes, offset);
    response.writeHead(200, { 'content-type': 'application/octet-stream', 'content-length': bytesRead });
    response.end(buffer.subarray(0, bytesRead));
  };
  const server = createServer((request, response) => {
    reply(response, Number(request.url!.slice(1))).catch((error: unknown) => response.destroy(error as Error));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port };
});
