import { symlink, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { join } from 'node:path';
import { expect } from 'chai';
import { withFolder } from '../testing/scratch.ts';
import { type ArtifactServer, serveArtifacts } from './artifacts.ts';

async function withServer(use: (server: ArtifactServer, folder: string) => Promise<void>): Promise<void> {
  await withFolder(async (outer) => {
    const folder = join(outer, 'artifacts');
    const server = await serveArtifacts(folder, 0);
    try {
      await writeFile(join(outer, 'secret'), 'secret');
      await use(server, folder);
    } finally {
      await server.close();
    }
  });
}

/** Returns the status of a GET whose path is sent unchanged, including dots. */
const rawStatus = (url: string, path: string) =>
  new Promise<number>((resolve, reject) => {
    const call = request(`${url}/`, { path }, (response) => {
      response.resume();
      resolve(response.statusCode!);
    });
    call.on('error', reject).end();
  });

describe('stack: artifacts', () => {
  it('are served byte for byte', async () => {
    await withServer(async ({ url }, folder) => {
      const content = Buffer.from(Array.from({ length: 100_000 }, (_, index) => index % 256));
      await writeFile(join(folder, 'firmware-1.0.0.bin'), content);
      const response = await fetch(`${url}/firmware-1.0.0.bin`);
      expect(response.headers.get('content-length')).to.equal('100000');
      expect(Buffer.from(await response.arrayBuffer()).equals(content)).to.equal(true);
    });
  });

  it('are the only files served', async () => {
    await withServer(async ({ url }, folder) => {
      await symlink('../secret', join(folder, 'link'));
      for (const path of ['/missing', '/', '/../secret', '/..%2Fsecret', '/%2e%2e/secret', '/link', '/%00', '/%']) {
        expect(await rawStatus(url, path), path).to.equal(404);
      }
      expect((await fetch(`${url}/x`, { method: 'POST' })).status).to.equal(405);
    });
  });
});
