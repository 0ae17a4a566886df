// Artifacts from private sources: S3 on a real service, with the installation's keys and with a tenant's own, and https servers
// that ask for credentials.
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { expect } from 'chai';
import { parseS3Location, type S3Location } from '../../../platform/object-store/s3-location.ts';
import { parseOutboundHosts } from '../../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import { TestS3 } from '../../../platform/testing/test-s3.ts';
import { noS3, testIntake } from '../testing/test-artifacts.ts';
import { ArtifactError } from './artifact-error.ts';
import { fetchArtifact, type FetchOptions, uriProblem } from './artifact-fetch.ts';
import { mayFetch } from './s3-source.ts';
import { coversAddress, readCredentials, type SecretValues, type SourceCredentials } from './source-credentials.ts';

const nowhere = 'artifact_uri leads to no address from which artifacts may be fetched';
const content = randomBytes(3_000_000);
const declared = { sha256: createHash('sha256').update(content).digest(), sizeBytes: content.length };
const open = new OutboundGuard(parseOutboundHosts(''));

describe('private sources of artifacts', () => {
  let s3: TestS3;

  before(async () => {
    s3 = await TestS3.start('builds', 'store');
    for (const name of ['builds/acme/fw 1.bin', 'builds/other/fw.bin', 'store/kellet/acme/secret']) {
      await mkdir(dirname(join(s3.folder, name)), { recursive: true });
      await writeFile(join(s3.folder, name), content);
    }
  });
  after(() => s3.stop());

  const sources = (overrides: Partial<FetchOptions['s3']> = {}): FetchOptions['s3'] => ({
    settings: s3.settings,
    buckets: ['*'],
    reserved: ['s3://store/kellet'],
    ...overrides,
  });
  const credentials = (values: SecretValues): SourceCredentials => {
    const read = readCredentials(values);
    if (typeof read === 'string') throw new Error(read);
    return read;
  };
  /** Fetches, and returns the error's message, or undefined for exactly the declared bytes. */
  const fetched = async (uri: string, options: Partial<FetchOptions> = {}): Promise<string | undefined> => {
    const pieces: Buffer[] = [];
    const signal = new AbortController().signal;
    try {
      await fetchArtifact(
        uri,
        declared,
        { ...testIntake(), guard: open, s3: sources(), tenantId: 'acme', signal, ...options },
        async () => async (piece) => void pieces.push(piece),
      );
    } catch (error) {
      expect(error).to.be.instanceOf(ArtifactError);
      return (error as Error).message;
    }
    expect(Buffer.concat(pieces).equals(content)).to.equal(true);
    return undefined;
  };

  it('fetches from S3 with the keys of the installation', async () => {
    expect(await fetched('s3://builds/acme/fw 1.bin')).to.equal(undefined);
  });

  it('says what the service says', async () => {
    expect(await fetched('s3://builds/acme/none')).to.match(/returned 404 \(NoSuchKey\)/);
    expect(await fetched('s3://nowhere-at-all/x')).to.match(/returned 404 \(NoSuchBucket\)/);
    const settings = { ...s3.settings, secretKey: 'another' };
    expect(await fetched('s3://builds/acme/fw 1.bin', { s3: sources({ settings }) })).to.match(/SignatureDoesNotMatch/);
    expect(await fetched('s3://builds/acme/fw 1.bin', { s3: sources({ settings: noS3 }) })).to.match(/no credentials/);
    const away = { ...s3.settings, endpoint: 'http://127.0.0.1:1' };
    expect(await fetched('s3://builds/acme/x', { s3: sources({ settings: away }) })).to.match(/cannot be reached/);
  });

  it('checks what it gets', async () => {
    await writeFile(join(s3.folder, 'builds/longer'), Buffer.concat([content, content]));
    await writeFile(join(s3.folder, 'builds/changed'), randomBytes(content.length));
    expect(await fetched('s3://builds/longer')).to.match(/larger than size_bytes says/);
    expect(await fetched('s3://builds/changed')).to.match(/checksum mismatch/);
  });

  it('never reads the installation’s own artifacts, nor buckets that are not listed', async () => {
    expect(await fetched('s3://store/kellet/acme/secret')).to.equal(nowhere);
    const listed = sources({ buckets: ['builds/{tenant}'] });
    expect(await fetched('s3://builds/acme/fw 1.bin', { s3: listed })).to.equal(undefined);
    expect(await fetched('s3://builds/other/fw.bin', { s3: listed })).to.equal(nowhere);
  });

  it('fetches from S3 with a tenant’s own keys, from an endpoint that tenants may reach', async () => {
    const { endpoint, accessKey, secretKey, region } = s3.settings;
    const own = credentials({ prefix: 's3://builds/', accessKey, secretKey, endpoint, region });
    const s3Sources = sources({ settings: noS3, buckets: [] });
    const uri = 's3://builds/other/fw.bin';
    expect(await fetched(uri, { s3: s3Sources, credentials: own }), 'a private address').to.equal(nowhere);
    const guard = new OutboundGuard(parseOutboundHosts(new URL(endpoint).host));
    expect(await fetched(uri, { s3: s3Sources, credentials: own, guard })).to.equal(undefined);
    const named = credentials({
      ...{ prefix: 's3://builds/', accessKey, secretKey, region },
      endpoint: endpoint.replace('127.0.0.1', 'localhost').replace('http:', 'https:'),
    });
    expect(await fetched(uri, { s3: s3Sources, credentials: named }), 'a name of this machine').to.equal(nowhere);
    const elsewhere = credentials({ prefix: 's3://builds/acme/', accessKey, secretKey, endpoint, region });
    expect(await fetched(uri, { s3: s3Sources, credentials: elsewhere, guard })).to.match(/not below the prefix/);
  });

  describe('on a web server', () => {
    let server: Server;
    let neighbour: Server;
    let base: string;
    let elsewhere: string;
    const seen: (string | undefined)[] = [];

    before(async () => {
      const listen = async (one: Server) => {
        one.listen(0, '127.0.0.1');
        await once(one, 'listening');
        return `http://127.0.0.1:${(one.address() as AddressInfo).port}`;
      };
      neighbour = createServer((request, response) => {
        seen.push(request.headers.authorization);
        response.end(content);
      });
      elsewhere = await listen(neighbour);
      server = createServer((request, response) => {
        if (request.headers.authorization !== 'Basic YnVpbGQ6cMOkc3M6d29yZA==') return response.writeHead(401).end();
        if (request.url === '/private/moved') return response.writeHead(302, { location: `${elsewhere}/x` }).end();
        if (request.url === '/private/s3')
          return response.writeHead(302, { location: 's3://builds/other/fw.bin' }).end();
        response.end(content);
      });
      base = await listen(server);
    });
    after(() => {
      for (const one of [server, neighbour]) {
        one.closeAllConnections();
        one.close();
      }
    });

    it('sends the credentials to their prefix, and not to where it is redirected', async () => {
      const guard = new OutboundGuard(parseOutboundHosts('127.0.0.1'));
      const own = credentials({ prefix: `${base}/private/`, username: 'build', password: 'päss:word' });
      expect(await fetched(`${base}/private/fw.bin`, { guard })).to.match(/returned 401/);
      expect(await fetched(`${base}/private/fw.bin`, { guard, credentials: own })).to.equal(undefined);
      expect(await fetched(`${base}/private/moved`, { guard, credentials: own })).to.equal(undefined);
      expect(seen).to.deep.equal([undefined]);
      expect(await fetched(`${base}/private/s3`, { guard, credentials: own })).to.match(/redirects to a refused place/);
      expect(await fetched(`${base}/public/fw.bin`, { guard, credentials: own })).to.match(/not below the prefix/);
    });
  });

  for (const [prefix, uri, covers] of [
    ['https://a.test/', 'https://a.test/x', true],
    ['https://a.test/', 'https://A.test:443/x', true],
    ['https://a.test/', 'https://a.test.evil.test/x', false],
    ['https://a.test/', 'http://a.test/x', false],
    ['https://a.test/', 'https://a.test:8443/x', false],
    ['https://a.test/', 'https://a.test@evil.test/x', false],
    ['https://a.test/p/', 'https://a.test/p/../q', false],
    ['https://a.test/p/', 'https://a.test/p/%2e%2e/q', false],
    ['https://a.test/p/', 'https://a.test/p/..%2fq', false],
    ['https://a.test/p/', 'https://a.test/pq', false],
    ['s3://bucket/', 's3://bucket/x', true],
    ['s3://bucket/', 's3://bucket-2/x', false],
    ['s3://bucket/p/', 's3://bucket/q', false],
  ] as const) {
    it(`credentials for ${prefix} ${covers ? 'cover' : 'do not cover'} ${uri}`, () =>
      expect(coversAddress({ prefix }, uri)).to.equal(covers));
  }

  const keys = { accessKey: 'a', secretKey: 's' };
  for (const [what, values, expected] of [
    [
      'a token',
      { prefix: 'https://a.test/x/', token: 't' },
      { prefix: 'https://a.test/x/', authorization: 'Bearer t' },
    ],
    ['S3 keys', { prefix: 's3://b-1/', ...keys }, { prefix: 's3://b-1/', s3: { ...keys, endpoint: '' } }],
    ['nothing', {}, /must have username and password, token, or/],
    ['two kinds', { prefix: 'https://a.test/', token: 't', username: 'u', password: 'p' }, /must have username/],
    ['no password', { prefix: 'https://a.test/', username: 'u' }, /data key password/],
    ['no prefix', { token: 't' }, /data key prefix/],
    ['a prefix without its slash', { prefix: 'https://a.test/x', token: 't' }, /ends with \//],
    ['a prefix that is no URL', { prefix: 'a.test/', token: 't' }, /is a URL/],
    ['a token for S3', { prefix: 's3://bucket/', token: 't' }, /s3 prefix alone/],
    ['S3 keys for a web server', { prefix: 'https://a.test/', ...keys }, /s3 prefix alone/],
    ['a token of two lines', { prefix: 'https://a.test/', token: 't\r\nx: y' }, /one line/],
    ['an endpoint that is no URL', { prefix: 's3://bucket/', ...keys, endpoint: 'x' }, /URL as endpoint/],
  ] as const) {
    it(`credentials are read from a Secret with ${what}`, () => {
      const read = readCredentials(values);
      if (expected instanceof RegExp) expect(read).to.match(expected);
      else expect(read).to.deep.equal(expected);
    });
  }

  for (const [buckets, uri, allowed] of [
    [['*'], 's3://any/x', true],
    [['*'], 's3://store/kellet/x', false],
    [['*'], 's3://store/kellet-2/x', true],
    [['store'], 's3://store/kellet/x', false],
    [['builds'], 's3://builds/x', true],
    [['builds'], 's3://builds-2/x', false],
    [['builds/{tenant}/'], 's3://builds/acme/x', true],
    [['builds/{tenant}'], 's3://builds/acme-2/x', false],
    [['{tenant}-builds'], 's3://acme-builds/x', true],
    [[], 's3://builds/x', false],
  ] as const) {
    it(`${allowed ? 'allows' : 'blocks'} ${uri} with the buckets ${JSON.stringify(buckets)}`, () => {
      const reserved = ['s3://store/kellet'];
      const location = parseS3Location(uri) as S3Location;
      expect(mayFetch({ settings: noS3, buckets, reserved }, 'acme', location)).to.equal(allowed);
    });
  }

  for (const [uri, problem] of [
    ['s3://bucket/fw.bin', undefined],
    ['s3://bucket', /must name an object/],
    ['s3://bucket/folder/', /must name an object/],
    ['s3://Bucket/x', /artifact_uri must have the form/],
    ['s3://bucket/../x', /segment/],
  ] as const) {
    it(`${problem ? 'rejects' : 'accepts'} ${uri}`, () => {
      const found = uriProblem(uri, open);
      if (problem) expect(found).to.match(problem);
      else expect(found).to.equal(undefined);
    });
  }
});
