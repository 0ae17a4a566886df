import { once } from 'node:events';
import { readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:tls';
import { expect } from 'chai';
import { addHealth } from '../platform/grpc/grpc-health.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import type { ControlTlsFiles } from './control-tls.ts';
import { RemoteInvoker } from './remote-invoker.ts';
import { InternalServer } from './server.ts';
import { writeControlTls } from './testing/test-control-tls.ts';

describe('TLS of the internal port', () => {
  const secret = 'a control secret';
  let server: InternalServer;
  let port: number;
  let ours: ControlTlsFiles & { folder: string };
  let foreign: ControlTlsFiles & { folder: string };

  before(async () => {
    [ours, foreign] = [await writeControlTls(), await writeControlTls()];
    server = new InternalServer(secret, createLogger('silent'), ours);
    addHealth(server, { services: ['x'], isServing: () => Promise.resolve(true), stopping: server.stopping });
    port = await server.listen('127.0.0.1', 0);
  });
  after(async () => {
    await server.close();
    for (const { folder } of [ours, foreign]) rmSync(folder, { recursive: true });
  });

  /** Calls the port with these files; without any, in plain text. */
  const isReached = async (tls: ControlTlsFiles | undefined, given = secret): Promise<boolean> => {
    const remote = new RemoteInvoker('x', `127.0.0.1:${port}`, given, tls);
    try {
      return await remote.check('x', 5000).then(
        () => true,
        () => false,
      );
    } finally {
      remote.close();
    }
  };

  it('lets in who has a certificate of the authority and the secret', async () => {
    expect(await isReached(ours)).to.equal(true);
    expect(await isReached(ours, 'another secret')).to.equal(false);
  });

  it('refuses plain text, certificates of other authorities, and clients without one', async () => {
    expect(await isReached(undefined)).to.equal(false);
    // Trusts the server, but has a certificate that it does not know.
    expect(await isReached({ ...foreign, caFile: ours.caFile })).to.equal(false);
    const socket = connect({
      host: '127.0.0.1',
      port,
      ca: readFileSync(ours.caFile),
      checkServerIdentity: () => undefined,
    });
    const ended = await Promise.race([once(socket, 'error'), once(socket, 'close')]);
    expect(String((ended[0] as { code?: string }).code)).to.match(/CERTIFICATE_REQUIRED|ECONNRESET|HANDSHAKE/);
    socket.destroy();
  });

  it('is not used by clients that do not know the authority of the server', async () => {
    expect(await isReached({ ...ours, caFile: foreign.caFile })).to.equal(false);
  });

  it('continues with the certificates that replace the files, without a restart', async () => {
    const remote = new RemoteInvoker('x', `127.0.0.1:${port}`, secret, ours);
    expect(await remote.check('x', 5000).catch((error: unknown) => error)).to.equal(undefined);
    const [before, kept] = [readFileSync(ours.certFile, 'utf8'), { ...foreign, caFile: foreign.caFile }];
    await writeControlTls(ours.folder);
    expect(readFileSync(ours.certFile, 'utf8')).not.to.equal(before);
    // Both sides read the files again within ten seconds.
    await eventually(() => isReached(ours), 30_000);
    await eventually(
      () =>
        remote.check('x', 2000).then(
          () => true,
          () => false,
        ),
      30_000,
    );
    expect(await isReached(kept)).to.equal(false);
    remote.close();
  }).timeout(70_000);
});
