// Artifacts' servers that mislead: to private addresses, about the length, and without an end.
import { expect } from 'chai';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { ArtifactError, fetchArtifact, isPrivateAddress, uriProblem } from './artifact-fetch.ts';

const content = Buffer.from('firmware');
const declared = { sha256: createHash('sha256').update(content).digest(), sizeBytes: content.length };

describe('the fetch of an artifact', () => {
  let server: Server;
  let listener: RequestListener;
  let base: string;
  /** Requests whose connection the fetch has closed before their answer was complete. */
  let cut: Promise<void>;

  before(async () => {
    server = createServer((request, response) => {
      cut = new Promise((resolve) => response.once('close', () => response.writableFinished || resolve()));
      listener(request, response);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });

  const failure = async (uri: string, options: { allowLocal?: boolean; timeoutMilliseconds?: number } = {}) => {
    const signal = new AbortController().signal;
    const error: unknown = await fetchArtifact(uri, declared, { allowLocal: true, signal, ...options }).then(
      (artifact) => artifact.dispose(),
      (thrown: unknown) => thrown,
    );
    if (error !== undefined) expect(error).to.be.instanceOf(ArtifactError);
    return error as ArtifactError | undefined;
  };

  it('refuses private addresses in every spelling', () => {
    for (const host of [
      '127.0.0.1',
      '2130706433',
      '0x7f.1',
      '0',
      '10.1.2.3',
      '169.254.169.254',
      '[::1]',
      '[::]',
      '[::ffff:127.0.0.1]',
      '[::ffff:a9fe:a9fe]',
      '[64:ff9b::7f00:1]',
      '[fd00::1]',
      '[fe80::1]',
      '100.64.0.1',
    ]) {
      expect(uriProblem(`https://${host}/artifact`, false), host).to.match(/private address/);
    }
    expect(uriProblem('https://93.184.216.34/artifact', false)).to.equal(undefined);
    expect(uriProblem('http://93.184.216.34/artifact', false)).to.match(/https/);
    expect(uriProblem('https://user:word@example.com/', false)).to.match(/password/);
    expect(isPrivateAddress('::ffff:10.0.0.1')).to.equal(true);
  });

  it('refuses a name that leads to a private address', async () => {
    const error = await failure('https://localhost/artifact', { allowLocal: false });
    expect(error?.message).to.match(/private address/);
  });

  it('takes what is declared, and nothing longer, shorter or other', async () => {
    listener = (_request, response) => response.end(content);
    expect(await failure(base)).to.equal(undefined);
    listener = (_request, response) => response.end(Buffer.concat([content, content]));
    expect(await failure(base)).to.include({ permanent: true });
    listener = (_request, response) => response.end(content.subarray(1));
    expect(await failure(base)).to.include({ permanent: true });
    listener = (_request, response) => response.end(Buffer.from('malware!'));
    expect(await failure(base)).to.include({ permanent: true });
    listener = (_request, response) => {
      response.writeHead(200, { 'content-length': content.length });
      response.write(content.subarray(0, 3));
      setTimeout(() => response.destroy(), 20);
    };
    expect(await failure(base)).to.include({ permanent: false });
  });

  it('ends when the server never does', async () => {
    listener = (_request, response) => {
      response.write(content.subarray(0, 1));
      const timer = setInterval(() => response.write(''), 20);
      response.once('close', () => clearInterval(timer));
    };
    expect(await failure(base, { timeoutMilliseconds: 200 })).to.include({ permanent: false });
    await cut;
  });

  it('does not wait for the end of an answer that it has no use for', async () => {
    const endless: RequestListener = (_request, response) => {
      const timer = setInterval(() => response.write('x'.repeat(1024)), 10);
      response.once('close', () => clearInterval(timer));
    };
    listener = (request, response) => {
      response.writeHead(404);
      endless(request, response);
    };
    const missing = await failure(base);
    expect(missing?.message).to.match(/answered 404/);
    expect(missing, 'the build may be published later').to.include({ permanent: false });
    await cut;
    listener = (request, response) => {
      response.writeHead(302, { location: 'https://user@127.0.0.1/' });
      endless(request, response);
    };
    expect((await failure(base))?.message).to.match(/must not carry a user/);
    await cut;
  });

  it('follows no more than a few redirects', async () => {
    listener = (_request, response) => response.writeHead(302, { location: '/again' }).end();
    expect((await failure(base))?.message).to.equal('too many redirects');
  });
});
