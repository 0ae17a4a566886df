// Tests the header chain against a real source and, through a proxy, one that lags or lies.
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { blockHash, meetsTarget, serialiseHeader, targetOf, toDisplayHex } from '@kellet/verify';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { startTestChain, type TestChain } from '../testing/test-chain.ts';
import { HeaderChain, storedHeaders, storedTip } from './header-chain.ts';
import { ChainTracks } from './header-source.ts';
import { rulesOf } from './reorganisation.ts';

const easy = 0x207fffff;

/** Returns the headers with `count` more mined on top, each with its proof of work. */
function mine(chain: readonly Buffer[], count: number, bits: number, root: Buffer): Buffer[] {
  const headers = [...chain];
  for (let i = 0; i < count; i += 1) {
    const previousHash = headers.length === 0 ? new Uint8Array(32) : blockHash(headers.at(-1)!);
    for (let nonce = 0; ; nonce += 1) {
      const header = serialiseHeader({ version: 1, previousHash, merkleRoot: root, time: headers.length, bits, nonce });
      if (!meetsTarget(blockHash(header), targetOf(bits))) continue;
      headers.push(Buffer.from(header));
      break;
    }
  }
  return headers;
}

describe('the header chain', function () {
  this.timeout(30_000);
  let test: TestDatabase;
  let devchain: TestChain;
  let chain: HeaderChain;
  const servers: Server[] = [];
  before(async () => {
    test = await createTestDatabase();
    devchain = await startTestChain();
    chain = follower(devchain.url);
  });
  after(async () => {
    for (const server of servers) server.close();
    await devchain?.stop();
    await test?.drop();
  });

  const follower = (url: string, rules = rulesOf('local')) =>
    new HeaderChain(test.database, new ChainTracks(url), rules, createLogger('silent'));
  const height = async () => (await devchain.state())['height'] as number;
  const tip = () => test.database.system(storedTip);
  const hashes = async () =>
    (await test.database.system((tx) => storedHeaders(tx, 0, 1000))).map((row) => row.blockHash);
  /** Proxies the real source and modifies its responses. */
  const proxy = async (change: (path: string, body: Buffer) => Buffer): Promise<string> => {
    const server = createServer((request, response) => {
      void fetch(`${devchain.url}${request.url}`).then(async (result) => {
        response.writeHead(result.status, { 'content-type': result.headers.get('content-type') ?? '' });
        response.end(change(request.url ?? '', Buffer.from(await result.arrayBuffer())));
      });
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  };

  /** Serves made-up headers; the first has height 0. */
  const serve = async (
    shown: () => readonly Buffer[],
    asked: (height: number) => void = () => undefined,
  ): Promise<string> => {
    const server = createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url!, 'http://localhost');
      const [from, count] = [Number(searchParams.get('height')), Number(searchParams.get('count'))];
      if (pathname === '/headers') asked(from);
      const headers = shown();
      if (pathname === '/headers') return response.end(Buffer.concat(headers.slice(from, from + count)));
      const tip = { height: headers.length - 1, hash: toDisplayHex(blockHash(headers.at(-1)!)) };
      return response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(tip));
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  };

  it('limits the length of a response about the tip', async () => {
    let sent = 0;
    const server = createServer((_request, response) => {
      const piece = Buffer.alloc(64 * 1024, ' ');
      const more = () => {
        while (!response.destroyed && response.write(piece)) sent += piece.length;
      };
      response.on('drain', more);
      more();
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const endless = follower(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    const failure = await endless.follow().catch((error: Error) => error.message);
    expect(failure).to.equal('the response is longer than 65536 bytes');
    expect(sent).to.be.lessThan(64 * 1024 * 1024);
  });

  it('starts two days below the tip and follows it', async () => {
    await devchain.control('mine', { count: 300 });
    await chain.follow();
    expect(await hashes()).to.have.length(289);
    await devchain.control('mine', { count: 30 });
    await chain.follow();
    expect(await hashes()).to.have.length(319);
    expect(await tip()).to.equal(await height());
  });

  it('fetches headers before its start', async () => {
    const wanted = (await height()) - 360;
    const header = await chain.header(wanted);
    expect(header).to.have.property('height', wanted);
    expect(await hashes()).to.have.length(361);
    expect(await chain.header((await height()) + 1)).to.equal(undefined);
  });

  it('fetches many headers before its start a page at a time, between which it follows the tip', async () => {
    const all = mine([], 9000, easy, Buffer.alloc(32));
    let shown = all.slice(0, -1);
    const asked: number[] = [];
    let following: Promise<void> | undefined;
    const own = await createTestDatabase();
    try {
      const url = await serve(
        () => shown,
        (height) => {
          asked.push(height);
          if (height >= 8000) return;
          shown = all;
          following ??= patient.follow();
        },
      );
      const patient = new HeaderChain(own.database, new ChainTracks(url), rulesOf('local'), createLogger('silent'));
      await patient.follow();
      asked.length = 0;
      const first = await patient.header(0);
      await following;
      const isOld = (height: number): boolean => height < 8000;
      expect(asked.findIndex((height) => !isOld(height))).to.be.lessThan(asked.findLastIndex(isOld));
      expect(first?.raw).to.deep.equal(all[0]);
      const stored = await own.database.system((tx) => storedHeaders(tx, 0, 10_000));
      expect(stored.map(({ raw }) => raw)).to.deep.equal(all);
    } finally {
      await own.drop();
    }
  });

  it('checks each link of many headers that come at once', async () => {
    const root = Buffer.alloc(32);
    const all = mine([], 8000, easy, root);
    let shown = all.slice(0, 300);
    const url = await serve(() => shown);
    const own = await createTestDatabase();
    const count = async () => (await own.database.system((tx) => storedHeaders(tx, 0, 10_000))).length;
    try {
      const careful = new HeaderChain(own.database, new ChainTracks(url), rulesOf('local'), createLogger('silent'));
      await careful.follow();
      const before = await count();
      // Where one page of headers ends and the next begins, for each place in a page at which that may be.
      for (const cut of [1000, 2287, 2288, 2289, 4287, 4288, 4289, 7999]) {
        shown = [...all.slice(0, cut), ...mine([Buffer.alloc(80, 1)], 8000 - cut, easy, root).slice(1)];
        const refused = await careful.follow().catch((error: Error) => error.message);
        expect(refused, String(cut)).to.match(/does not follow/);
      }
      expect(await count()).to.equal(before);
      shown = all;
      await careful.follow();
      expect(await count()).to.equal(before + 7700);
    } finally {
      await own.drop();
    }
  });

  it('fetches ahead when a block is requested that it has not seen', async () => {
    await devchain.control('mine', { count: 2 });
    expect(await chain.header(await height())).to.have.property('height', await height());
  });

  for (const depth of [1, 12, 30]) {
    it(`follows a reorganisation of ${depth} blocks`, async () => {
      const before = await hashes();
      await devchain.control('reorg', { depth });
      await chain.follow();
      const after = await hashes();
      expect(after).to.have.length(before.length + 1);
      expect(after.filter((hash, index) => hash === before[index])).to.have.length(before.length - depth);
      expect(after.at(-1)).to.equal((await devchain.state())['block_hash']);
    });
  }

  it('does not go back with a source that merely lags', async () => {
    const before = await hashes();
    const lagging = (await height()) - 5;
    const url = await proxy((path, body) => {
      if (!path.startsWith('/tip')) return body;
      return Buffer.from(JSON.stringify({ height: lagging, hash: before.at(-6) }));
    });
    await follower(url).follow();
    expect(await hashes()).to.deep.equal(before);
  });

  it('refuses a longer branch with less work, and a deep one without operator approval', async () => {
    const hard = 0x1f7fffff; // 256 times the work of the others
    const root = Buffer.alloc(32);
    let shown: Buffer[] = [];
    const url = await serve(() => shown);
    const own = await createTestDatabase();
    const inOwn = async () => (await own.database.system((tx) => storedHeaders(tx, 0, 1000))).map((row) => row.raw);
    try {
      const rules = { ...rulesOf('local'), deepestReorganisation: 3 };
      const careful = new HeaderChain(own.database, new ChainTracks(url), rules, createLogger('silent'));
      const base = mine([], 20, easy, root);
      const real = mine(base, 5, hard, root);
      shown = real;
      await careful.follow();
      expect(await inOwn()).to.deep.equal(real);
      // More headers but less work: each of the five replaced ones has 256 times the work of one of these.
      shown = mine(base, 600, easy, Buffer.alloc(32, 1));
      await careful.follow();
      expect(await inOwn()).to.deep.equal(real);
      expect(careful.isBranchRefused).to.equal(false);
      // Fewer headers and more work, but five deep.
      shown = mine(base, 3, 0x1f1fffff, Buffer.alloc(32, 2));
      await careful.follow();
      expect(await inOwn()).to.deep.equal(real);
      expect(careful.isBranchRefused).to.equal(true);
      expect(await careful.header(25)).to.equal(undefined);
      // The source recovers and is followed.
      shown = mine(real, 2, hard, root);
      await careful.follow();
      expect(await inOwn()).to.deep.equal(shown);
      expect(careful.isBranchRefused).to.equal(false);
      // Three deep with more work and fewer headers.
      shown = mine(shown.slice(0, -3), 1, 0x1f1fffff, Buffer.alloc(32, 3));
      await careful.follow();
      expect(await inOwn()).to.deep.equal(shown);
      // Five deep again, refused until the operator allows it.
      const before = shown;
      shown = mine(base, 9, 0x1f1fffff, Buffer.alloc(32, 4));
      await careful.follow();
      expect(careful.isBranchRefused).to.equal(true);
      expect(await inOwn()).to.deep.equal(before);
      await new HeaderChain(own.database, new ChainTracks(url), rulesOf('local', 5), createLogger('silent')).follow();
      expect(await inOwn()).to.deep.equal(shown);
    } finally {
      await own.drop();
    }
  });

  it('stores nothing from a source whose headers are inconsistent', async () => {
    const before = await hashes();
    await devchain.control('mine', { count: 3 });
    const lies: [what: string, change: (body: Buffer) => Buffer][] = [
      ['a changed root', (body) => Buffer.from(body.map((byte, index) => (index === 80 * 13 + 40 ? byte ^ 1 : byte)))],
      ['reordered headers', (body) => Buffer.concat([body.subarray(80), body.subarray(0, 80)])],
      ['half a header', (body) => body.subarray(40)],
      ['an empty response', () => Buffer.from('not found')],
    ];
    for (const [what, change] of lies) {
      const url = await proxy((path, body) => (path.startsWith('/headers') ? change(body) : body));
      const outcome = await follower(url)
        .follow()
        .then(
          () => 'taken',
          () => 'refused',
        );
      expect(outcome, what).to.equal('refused');
      expect(await hashes(), what).to.deep.equal(before);
    }
    const gone = follower('http://127.0.0.1:1');
    expect(
      await gone.follow().then(
        () => 'taken',
        () => 'refused',
      ),
    ).to.equal('refused');
    await chain.follow();
    expect(await hashes()).to.have.length(before.length + 3);
  });
});
