// Both stores, held to the same contract: a folder, and S3 on a real service.
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readlinkSync, statSync } from 'node:fs';
import { type FileHandle, mkdtemp, open as openFile, readdir, rm } from 'node:fs/promises';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { TestS3 } from '../testing/test-s3.ts';
import { MissingObjectError, type ObjectStore } from './object-store.ts';
import { openStore, storeProblem } from './open-store.ts';
import { S3Client, S3Error } from './s3-client.ts';
import { parseS3Location } from './s3-location.ts';

const failureOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  );

describe('object stores', function () {
  this.timeout(30_000);
  let folder: string;
  let s3: TestS3;
  const opened: ObjectStore[] = [];
  const open = (url: string): ObjectStore => {
    const store = openStore(url, s3.settings);
    opened.push(store);
    return store;
  };

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kellet-store-'));
    s3 = await TestS3.start('one', 'two');
  });
  after(async () => {
    for (const store of opened) store.close();
    await s3.stop();
    await rm(folder, { recursive: true, force: true });
  });

  for (const [what, urlOf] of [
    ['a folder', () => `${pathToFileURL(folder).href}/made here`],
    ['a bucket', () => 's3://one'],
    ['a prefix in a bucket', () => 's3://two/some/prefix/'],
  ] as const) {
    describe(what, () => {
      it('returns any range of what was put', async () => {
        const store = open(urlOf());
        const bytes = randomBytes(700_000);
        await store.put('acme/1/0-a', bytes);
        for (const [offset, length] of [
          [0, 1],
          [0, 700_000],
          [262_140, 10],
          [699_999, 1],
          [300_001, 65_536],
        ] as const) {
          const read = await store.read('acme/1/0-a', offset, length);
          expect(read.equals(bytes.subarray(offset, offset + length)), `${offset}`).to.equal(true);
        }
      });

      it('reports what does not exist', async () => {
        const store = open(urlOf());
        expect(await failureOf(store.read('acme/none', 0, 1))).to.be.instanceOf(MissingObjectError);
        await store.put('acme/short', Buffer.from('short'));
        expect(await failureOf(store.read('acme/short', 3, 10))).to.be.instanceOf(MissingObjectError);
        expect(await store.list('acme/none', '')).to.deep.equal([]);
        await store.remove('acme/none');
      });

      it('moves an object, once', async () => {
        const store = open(urlOf());
        const bytes = randomBytes(5_000_000);
        await store.put('_staging/x=1/a.parquet', bytes);
        await store.move('_staging/x=1/a.parquet', 'x=1/date=2026-11-20/a.parquet');
        // As after a crash in between.
        await store.move('_staging/x=1/a.parquet', 'x=1/date=2026-11-20/a.parquet');
        expect((await store.read('x=1/date=2026-11-20/a.parquet', 0, bytes.length)).equals(bytes)).to.equal(true);
        expect(await store.list('_staging/x=1', '')).to.deep.equal([]);
        expect(await failureOf(store.move('_staging/none', 'none'))).to.be.instanceOf(MissingObjectError);
      });

      it('lists and removes what is below a name, and nothing beside it', async () => {
        const store = open(urlOf());
        const names = ['a', 'b', 'c'].map((one) => `beta/7/${one}`);
        for (const name of [...names, 'beta/70/x']) await store.put(name, Buffer.from(name));
        expect(await store.list('beta/7', '')).to.deep.equal(names);
        expect(await store.list('beta/7', 'beta/7/a')).to.deep.equal(names.slice(1));
        await store.remove('beta/7/c');
        expect(await store.list('beta/7', '')).to.deep.equal(names.slice(0, 2));
        await store.remove('beta/7');
        // A new one, which has nothing in memory.
        const other = open(urlOf());
        expect(await failureOf(other.read('beta/7/a', 0, 1))).to.be.instanceOf(MissingObjectError);
        expect((await other.read('beta/70/x', 0, 9)).toString()).to.equal('beta/70/x');
      });
    });
  }

  it('leave no partial file behind', async () => {
    const store = open(pathToFileURL(join(folder, 'whole')).href);
    await store.put('acme/x', randomBytes(1000));
    expect(await readdir(join(folder, 'whole/acme'))).to.deep.equal(['x']);
  });

  it('return from putting and moving files at a time only once the names of each are durable, with few syncs of what they share', async () => {
    const root = await mkdtemp(join(folder, 'synced-'));
    const store = open(pathToFileURL(root).href);
    // What a folder had when its sync began, once that has ended.
    const synced = new Map<string, Set<string>>();
    const syncs = new Map<string, number>();
    const probe = await openFile(root, 'r');
    const prototype = Object.getPrototypeOf(probe) as { sync: (this: FileHandle) => Promise<void> };
    await probe.close();
    const { sync } = prototype;
    prototype.sync = async function (this: FileHandle) {
      const path = readlinkSync(`/proc/self/fd/${this.fd}`);
      const names = statSync(path).isDirectory() ? readdirSync(path) : [''];
      await sync.call(this);
      // Long enough for other files to come meanwhile.
      await new Promise((resolve) => setTimeout(resolve, 2));
      const known = synced.get(path) ?? new Set();
      for (const name of names) known.add(name);
      synced.set(path, known);
      syncs.set(path, (syncs.get(path) ?? 0) + 1);
    };
    /** Returns what of a file's name is not durable. */
    const missing = (name: string): string[] => {
      const parts = name.split('/');
      return parts.flatMap((part, index) => {
        const parent = join(root, ...parts.slice(0, index));
        return synced.get(parent)?.has(part) ? [] : join(parent, part);
      });
    };
    try {
      const names = Array.from({ length: 24 }, (_, n) => `tenant=a/date=${n >> 1}/file-${n}`);
      await Promise.all(
        names.map(async (name) => {
          await store.put(`_staging/1/${name}`, Buffer.from(name));
          expect(missing(`_staging/1/${name}`)).to.deep.equal([]);
        }),
      );
      const inStaging = syncs.get(join(root, '_staging'))!;
      expect(inStaging).to.be.within(1, names.length / 2);
      await Promise.all(
        names.map(async (name) => {
          await store.move(`_staging/1/${name}`, name);
          expect(missing(name)).to.deep.equal([]);
        }),
      );
      expect(syncs.get(join(root, 'tenant=a'))).to.be.within(1, names.length / 2);
      expect(syncs.get(join(root, 'tenant=a/date=3'))).to.be.within(1, 2);
    } finally {
      prototype.sync = sync;
    }
  });

  it('give up in time when the service stalls before its response or in the middle of it', async () => {
    // More requests than there are connections: those that wait for one must not wait for the others.
    const requests = 200;
    let received = 0;
    let response = '';
    const sockets = new Set<Socket>();
    const server = createServer((socket) => {
      sockets.add(socket);
      socket
        .on('error', () => undefined)
        .on('data', () => {
          received += 1;
          socket.write(response);
        });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const client = new S3Client({ ...s3.settings, endpoint, idleMilliseconds: 300 });
    try {
      const failures = await Promise.all(
        Array.from({ length: requests }, (_, n) => failureOf(client.read('one', `key ${n}`, 0, 10))),
      );
      for (const failure of failures) expect(failure).to.have.property('message', 'the S3 service does not respond');
      expect(received, 'attempts').to.be.within(1, requests * 2);
      expect(await failureOf(client.put('one', 'key', Buffer.alloc(10)))).to.have.property('name', 'S3StallError');
      received = 0;
      response = 'HTTP/1.1 206 Partial Content\r\ncontent-length: 10\r\n\r\nabc';
      expect(await failureOf(client.read('one', 'key', 0, 10))).to.have.property('name', 'S3StallError');
      expect(received, 'attempts').to.be.within(1, 2);
      response = 'HTTP/1.1 403 Forbidden\r\ncontent-length: 60000\r\n\r\n<Code>';
      const drip = setInterval(() => sockets.forEach((socket) => socket.writable && socket.write('x')), 20);
      const refused = await failureOf(client.open('one', 'key')).finally(() => clearInterval(drip));
      expect(refused, 'an error that does not end').to.be.instanceOf(S3Error).and.include({ status: 403 });
    } finally {
      client.close();
      for (const socket of sockets) socket.destroy();
      server.close();
    }
  });

  it('survive a restart of the service', async () => {
    const store = open('s3://one/restart');
    await store.put('a', Buffer.from('before'));
    await s3.kill();
    const reading = store.read('a', 0, 6);
    await s3.start();
    expect((await reading).toString()).to.equal('before');
  });

  describe('the S3 client', () => {
    it('signs keys with every kind of character', async () => {
      const client = new S3Client(s3.settings);
      for (const key of ['a b+c', "it's (1)!*", 'ü/日本', '100%25', 'a?b=c&d#e', 'a=b,c:d;e@f$g']) {
        await client.put('one', key, Buffer.from(key));
        expect((await client.read('one', key, 0, 1000)).toString(), key).to.equal(key);
      }
      client.close();
    });

    it('uses one connection for reads that follow each other', async () => {
      // Between the client and the service, because the service does not tell.
      let connections = 0;
      const { hostname, port } = new URL(s3.settings.endpoint);
      const proxy = createServer((socket) => {
        connections += 1;
        const onward = connect(Number(port), hostname);
        socket.pipe(onward).pipe(socket);
        for (const end of [socket, onward]) end.on('error', () => undefined);
      }).listen(0, '127.0.0.1');
      await once(proxy, 'listening');
      const endpoint = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
      const client = new S3Client({ ...s3.settings, endpoint });
      try {
        await client.put('one', 'often read', randomBytes(300_000));
        for (let at = 0; at < 300_000; at += 50_000) await client.read('one', 'often read', at, 50_000);
        expect(connections).to.equal(1);
      } finally {
        client.close();
        proxy.close();
      }
    });

    it('reports refusals with the code of the service', async () => {
      const client = new S3Client({ ...s3.settings, secretKey: 'another' });
      const denied = await failureOf(client.read('one', 'a', 0, 1));
      expect(denied).to.be.instanceOf(S3Error).and.include({ status: 403, code: 'SignatureDoesNotMatch' });
      client.close();
    });
  });

  for (const [text, expected] of [
    ['s3://bucket/a/b.bin', { bucket: 'bucket', key: 'a/b.bin' }],
    ['s3://my.bucket-1/a b?c#d%20', { bucket: 'my.bucket-1', key: 'a b?c#d%20' }],
    ['s3://bucket', { bucket: 'bucket', key: '' }],
    ['s3://Bucket/a', /the name of a bucket/],
    ['s3://b/a', /the name of a bucket/],
    ['s3://user@bucket/a', /the name of a bucket/],
    ['s3:///a', /the name of a bucket/],
    ['s3://bucket/../other/a', /segment/],
    ['s3://bucket/a/./b', /segment/],
    ['s3://bucket/a\nb', /control/],
    [`s3://bucket/${'a'.repeat(1025)}`, /1024/],
  ] as const) {
    it(`parse ${JSON.stringify(text.slice(0, 40))}`, () => {
      const parsed = parseS3Location(text);
      if (expected instanceof RegExp) expect(parsed).to.match(expected);
      else expect(parsed).to.deep.equal(expected);
    });
  }

  for (const [url, isValid] of [
    ['file:///var/lib/kellet', true],
    ['file:///', false],
    ['file://host/folder', false],
    ['file:relative', false],
    ['file:///a?b', false],
    ['s3://bucket/prefix', true],
    ['s3://bucket', true],
    ['s3://B/prefix', false],
    ['https://bucket/prefix', false],
    ['', false],
  ] as const) {
    it(`${isValid ? 'accept' : 'reject'} the URL ${JSON.stringify(url)}`, () =>
      expect(storeProblem(url) === undefined).to.equal(isValid));
  }
});
