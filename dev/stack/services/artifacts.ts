// Serves the files of one folder over HTTP on 127.0.0.1: the artifacts of the local stack.
import { createReadStream } from 'node:fs';
import { mkdir, realpath, stat } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { join, sep } from 'node:path';
import { pipeline } from 'node:stream/promises';

/** A running file server. */
export interface ArtifactServer {
  /** Base URL of the folder, without a trailing slash. */
  url: string;
  close(): Promise<void>;
}

async function serve(folder: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    response.writeHead(405, { allow: 'GET, HEAD' }).end();
    return;
  }
  const path = join(folder, decodeURIComponent(new URL(request.url ?? '/', 'http://localhost').pathname));
  const real = await realpath(path);
  const found = await stat(real);
  if (!real.startsWith(folder + sep) || !found.isFile()) throw new Error('not a file of the folder');
  response.writeHead(200, { 'content-type': 'application/octet-stream', 'content-length': found.size });
  if (request.method === 'HEAD') response.end();
  else await pipeline(createReadStream(real), response);
}

/** Starts the server; the folder is created if missing. */
export async function serveArtifacts(folder: string, port: number): Promise<ArtifactServer> {
  await mkdir(folder, { recursive: true });
  const root = await realpath(folder);
  const server = createServer((request, response) => {
    serve(root, request, response).catch(() => {
      if (response.headersSent) response.destroy();
      else response.writeHead(404).end();
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', resolve);
  });
  return {
    url: `http://127.0.0.1:${(server.address() as { port: number }).port}`,
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
