// The chain of headers against a real source, and against one that is behind or lies (the real one, seen through a proxy).
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../platform/test-database.ts';
import { HeaderChain, storedHeaders, storedTip } from './header-chain.ts';
import { startDevchain, type DevchainProcess } from './testing/devchain-process.ts';

describe('the chain of headers', function () {
  this.timeout(30_000);
  let test: TestDatabase;
  let devchain: DevchainProcess;
  let chain: HeaderChain;
  const servers: Server[] = [];
  before(async () => {
    test = await createTestDatabase();
    devchain = await startDevchain();
    chain = new HeaderChain(test.database, devchain.url);
  });
  after(async () => {
    for (const server of servers) server.close();
    await devchain?.stop();
    await test?.drop();
  });

  const height = async () => (await devchain.state())['height'] as number;
  const tip = () => test.database.system(storedTip);
  const hashes = async () =>
    (await test.database.system((tx) => storedHeaders(tx, 0, 1000))).map((row) => row.blockHash);
  /** The real source, with its answers changed on the way. */
  const proxy = async (change: (path: string, body: Buffer) => Buffer): Promise<string> => {
    const server = createServer((request, response) => {
      void fetch(`${devchain.url}${request.url}`).then(async (answer) => {
        response.writeHead(answer.status, { 'content-type': answer.headers.get('content-type') ?? '' });
        response.end(change(request.url ?? '', Buffer.from(await answer.arrayBuffer())));
      });
    });
    servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  };

  it('begins at the tip and follows it', async () => {
    await chain.follow();
    expect(await hashes()).to.have.length(1);
    await devchain.control('mine', { count: 30 });
    await chain.follow();
    expect(await hashes()).to.have.length(31);
    expect(await tip()).to.equal(await height());
  });

  it('fetches what lies before its beginning', async () => {
    const wanted = (await height()) - 60;
    const header = await chain.header(wanted);
    expect(header).to.have.property('height', wanted);
    expect(await hashes()).to.have.length(61);
    expect(await chain.header((await height()) + 1)).to.equal(undefined);
  });

  it('fetches ahead when it is asked for a block that it has not seen', async () => {
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

  it('does not go back with a source that is merely behind', async () => {
    const before = await hashes();
    const lagging = (await height()) - 5;
    const url = await proxy((path, body) => {
      if (!path.startsWith('/tip')) return body;
      return Buffer.from(JSON.stringify({ height: lagging, hash: before.at(-6) }));
    });
    await new HeaderChain(test.database, url).follow();
    expect(await hashes()).to.deep.equal(before);
  });

  it('takes nothing from a source whose headers do not hold together', async () => {
    const before = await hashes();
    await devchain.control('mine', { count: 3 });
    const lies: [what: string, change: (body: Buffer) => Buffer][] = [
      ['a changed root', (body) => Buffer.from(body.map((byte, index) => (index === 80 * 13 + 40 ? byte ^ 1 : byte)))],
      ['another order', (body) => Buffer.concat([body.subarray(80), body.subarray(0, 80)])],
      ['half a header', (body) => body.subarray(40)],
      ['nothing at all', () => Buffer.from('not found')],
    ];
    for (const [what, change] of lies) {
      const url = await proxy((path, body) => (path.startsWith('/headers') ? change(body) : body));
      const outcome = await new HeaderChain(test.database, url).follow().then(
        () => 'taken',
        () => 'refused',
      );
      expect(outcome, what).to.equal('refused');
      expect(await hashes(), what).to.deep.equal(before);
    }
    const gone = new HeaderChain(test.database, 'http://127.0.0.1:1');
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
