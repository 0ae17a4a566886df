// Servers of artifacts that mislead: to blocked addresses, about the length, slowly, and without an end.
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, createServer as createSocketServer } from 'node:net';
import { gzipSync } from 'node:zlib';
import { expect } from 'chai';
import { sleep } from '../../../platform/clock.ts';
import { parseOutboundHosts } from '../../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import { testIntake } from '../testing/test-artifacts.ts';
import { ArtifactError } from './artifact-error.ts';
import { fetchArtifact, type FetchOptions, uriProblem } from './artifact-fetch.ts';

const content = Buffer.from('firmware');
const declared = { sha256: createHash('sha256').update(content).digest(), sizeBytes: content.length };
const nowhere = 'artifact_uri leads to no address from which artifacts may be fetched';

describe('the fetch of an artifact', () => {
  let server: Server;
  /** A neighbour that is not on the list: nothing may ever reach it. */
  let neighbour: Server;
  let intrusions = 0;
  let listener: RequestListener;
  let base: string;
  let neighbourBase: string;
  let guard: OutboundGuard;
  /** Requests whose connection the fetch has closed before their response was complete. */
  let cut: Promise<void>;

  before(async () => {
    server = createServer((request, response) => {
      cut = new Promise((resolve) => response.once('close', () => response.writableFinished || resolve()));
      listener(request, response);
    });
    neighbour = createServer((_request, response) => {
      intrusions += 1;
      response.end(content);
    });
    const listen = async (one: Server) => {
      one.listen(0, '127.0.0.1');
      await once(one, 'listening');
      return `http://127.0.0.1:${(one.address() as AddressInfo).port}`;
    };
    base = await listen(server);
    neighbourBase = await listen(neighbour);
    guard = new OutboundGuard(parseOutboundHosts(new URL(base).host));
  });
  after(() => {
    for (const one of [server, neighbour]) {
      one.closeAllConnections();
      one.close();
    }
  });
  afterEach(() => expect(intrusions).to.equal(0));

  const received: Buffer[] = [];
  const failure = async (uri: string, options: Partial<FetchOptions> = {}, artifact = declared) => {
    received.length = 0;
    const signal = new AbortController().signal;
    const error: unknown = await fetchArtifact(
      uri,
      artifact,
      { ...testIntake(), tenantId: 'acme', guard, signal, ...options },
      async () => async (piece) => {
        received.push(piece);
      },
    ).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    if (error !== undefined) expect(error).to.be.instanceOf(ArtifactError);
    return error as ArtifactError | undefined;
  };

  it('rejects addresses of this machine and its neighbours in every spelling, with one message', async () => {
    const public_ = new OutboundGuard(parseOutboundHosts(''));
    for (const host of [
      '127.0.0.1',
      '2130706433',
      '0x7f.1',
      '0',
      '10.1.2.3',
      '169.254.169.254',
      '192.0.2.1',
      '[::1]',
      '[::]',
      '[::ffff:127.0.0.1]',
      '[::ffff:a9fe:a9fe]',
      '[64:ff9b::7f00:1]',
      '[2002:7f00:1::]',
      '[fd00::1]',
      '[fe80::1]',
      '100.64.0.1',
    ]) {
      expect(uriProblem(`https://${host}/artifact`, public_), host).to.equal(nowhere);
    }
    expect(uriProblem('https://93.184.216.34/artifact', public_)).to.equal(undefined);
    expect(uriProblem('https://user:word@example.com/', public_)).to.match(/password/);
    for (const name of ['localhost', 'does-not-exist.invalid']) {
      expect(await failure(`https://${name}/artifact`), name).to.include({ message: nowhere });
    }
  });

  it('allows plain http to listed hosts only', async () => {
    listener = (_request, response) => response.end(content);
    expect(await failure(base)).to.equal(undefined);
    expect(Buffer.concat(received).equals(content)).to.equal(true);
    expect(uriProblem('http://93.184.216.34/artifact', guard)).to.equal(
      'artifact_uri must be an https or s3 URL, upload://, or an http URL of a host in KELLET_ARTIFACT_HOSTS',
    );
    expect((await failure(neighbourBase))?.message).to.match(/must be an https or s3 URL/);
    expect((await failure(neighbourBase.replace('http:', 'https:')))?.message).to.equal(nowhere);
  });

  describe('does not follow a redirect', () => {
    for (const [what, location, message] of [
      ['the metadata service', () => 'https://169.254.169.254/latest/meta-data/', /leads to no address/],
      [
        'the metadata service over http',
        () => 'http://169.254.169.254/latest/meta-data/',
        /must be an https or s3 URL/,
      ],
      ['another port of the same machine', () => neighbourBase, /must be an https or s3 URL/],
      ['another port of it over https', () => neighbourBase.replace('http:', 'https:'), /leads to no address/],
      ['a name that leads to this machine', () => 'https://localhost/', /leads to no address/],
      ['another scheme', () => 'file:///etc/passwd', /must be an https or s3 URL/],
      ['a place with a password', () => 'https://user@127.0.0.1/', /must not carry a user/],
      ['what is no URL', () => 'http://[', /no URL/],
    ] as const) {
      it(`to ${what}`, async () => {
        listener = (_request, response) => response.writeHead(302, { location: location() }).end();
        expect((await failure(base))?.message).to.match(message);
      });
    }
  });

  it('follows no more than a few redirects', async () => {
    let hops = 0;
    listener = (request, response) => {
      hops += 1;
      if (request.url === '/5') response.end(content);
      else response.writeHead(302, { location: `/${Number(request.url!.slice(1)) + 1}` }).end();
    };
    expect(await failure(`${base}/0`)).to.equal(undefined);
    expect(hops).to.equal(6);
    expect(await failure(`${base}/-1`)).to.include({ message: 'too many redirects', permanent: true });
  });

  it('accepts the declared artifact, and nothing longer, shorter or other', async () => {
    listener = (_request, response) => response.end(Buffer.concat([content, content]));
    expect(await failure(base)).to.include({ permanent: true });
    expect(received, 'refused by its length, before the first byte').to.have.length(0);
    listener = (_request, response) => {
      response.write(content);
      response.end(content);
    };
    expect((await failure(base))?.message).to.match(/larger than size_bytes says \(8 bytes\)/);
    expect(await failure(base, { maximumBytes: 15 }, { ...declared, sizeBytes: 0 })).to.include({
      message: 'the artifact is larger than an artifact may be here (15 bytes)',
      permanent: true,
    });
    expect((await failure(base, { maximumBytes: 7 }))?.message).to.equal('an artifact has at most 7 bytes here');
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

  it('requests the bytes without content encoding, and refuses encoded ones', async () => {
    let accepted: string | undefined;
    listener = (request, response) => {
      accepted = request.headers['accept-encoding'];
      response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(content));
    };
    expect((await failure(base))?.message).to.match(/encoded \(gzip\)/);
    expect(accepted).to.equal('identity');
  });

  it('ends when the server sends slowly, stops sending or never responds', async () => {
    const pace = { idleMilliseconds: 100, totalMilliseconds: 300 };
    listener = (_request, response) => {
      const timer = setInterval(() => response.write('x'), 20);
      response.once('close', () => clearInterval(timer));
    };
    const slow = await failure(base, { pace }, { ...declared, sizeBytes: 0 });
    expect(slow).to.include({ permanent: false });
    expect(slow?.message).to.match(/too slow: the data did not arrive within 0.3 s/);
    await cut;
    listener = (_request, response) => void response.write('x');
    expect((await failure(base, { pace }))?.message).to.match(/no data arrived for 0.1 s/);
    await cut;
    listener = () => undefined;
    expect((await failure(base, { pace }))?.message).to.match(/sent nothing for 0.1 s/);
    await cut;
    const aborting = new AbortController();
    const gone = fetchArtifact(
      base,
      declared,
      { ...testIntake(), tenantId: 'acme', guard, signal: aborting.signal },
      async () => async () => undefined,
    );
    await sleep(20);
    aborting.abort(new Error('the client went away'));
    const thrown: unknown = await gone.then(
      () => undefined,
      (error: unknown) => error,
    );
    expect(thrown).to.be.instanceOf(Error);
    await cut;
  });

  it('does not read the rest of a response that it rejects', async () => {
    const endless: RequestListener = (_request, response) => {
      const timer = setInterval(() => response.write('x'.repeat(1024)), 10);
      response.once('close', () => clearInterval(timer));
    };
    listener = (request, response) => {
      response.writeHead(404);
      endless(request, response);
    };
    const missing = await failure(base);
    expect(missing?.message).to.match(/returned 404/);
    expect(missing, 'the build may be published later').to.include({ permanent: false });
    await cut;
    listener = (request, response) => {
      response.writeHead(302, { location: 'https://user@127.0.0.1/' });
      endless(request, response);
    };
    expect((await failure(base))?.message).to.match(/must not carry a user/);
    await cut;
  });

  it('does not reveal why a server is unreachable', async () => {
    const closed = createSocketServer().listen(0, '127.0.0.1');
    await once(closed, 'listening');
    const { port } = closed.address() as AddressInfo;
    const resets = createSocketServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
    await once(resets, 'listening');
    closed.close();
    const open = new OutboundGuard(parseOutboundHosts('127.0.0.1'));
    for (const silent of [port, (resets.address() as AddressInfo).port]) {
      const error = await failure(`http://127.0.0.1:${silent}/`, { guard: open });
      expect(error).to.include({ message: "the artifact's server cannot be reached", permanent: false });
    }
    resets.close();
    expect((await failure(base.replace('http:', 'https:')))?.message).to.match(/certificate|HTTP|reached/);
  });
});
