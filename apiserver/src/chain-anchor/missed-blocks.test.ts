// Tests anchoring with a node: headers while the header source is away, and blocks that the processor never reports.
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import type { ServiceModule } from '../config/module.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { createVerifier } from '../verifier/service.ts';
import { HeaderChain, storedHeaders } from './headers/header-chain.ts';
import { ChainTracks, HeadersWithFallback } from './headers/header-source.ts';
import { NodeRpc } from './headers/node-rpc.ts';
import { rulesOf } from './headers/reorganisation.ts';
import { chainChecks } from './readiness.ts';
import { type Anchoring, newPoint, sealBatch, startAnchoring, type TestBatch } from './testing/anchoring.ts';
import { expectAnchored, reaches, statusOf } from './testing/expect-anchored.ts';
import { startTestChain, type TestChain } from './testing/test-chain.ts';

/** A proxy of devchain that a test makes fail or return false data. */
class Proxy {
  /** Requests that are refused with 503. */
  refuses: (method: string, path: string) => boolean = () => false;
  change: (body: string) => string = (body) => body;
  /** Bodies of the requests. */
  readonly requests: string[] = [];
  private readonly server: Server;

  constructor(target: string) {
    this.server = createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (part: string) => (body += part));
      request.on('end', () => {
        this.requests.push(body);
        const { method = 'GET', url = '/' } = request;
        if (this.refuses(method, url)) return response.writeHead(503).end('{}');
        const headers = { 'content-type': 'application/json' };
        return void fetch(target + url, { method, headers, ...(method === 'POST' ? { body } : {}) }).then(
          async (result) => {
            const type = result.headers.get('content-type') ?? '';
            response.writeHead(result.status, { 'content-type': type });
            const bytes = Buffer.from(await result.arrayBuffer());
            response.end(type.includes('json') ? this.change(bytes.toString()) : bytes);
          },
        );
      });
    });
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.server.closeAllConnections();
    this.server.close();
  }
}

describe('anchoring with a node', function () {
  this.timeout(90_000);
  let anchoring: Anchoring;
  let processor: Proxy;
  let node: Proxy;
  let service: ServiceModule;

  before(async () => {
    anchoring = await startAnchoring();
    createVerifier(anchoring.platform).register(anchoring.registry);
    await anchoring.halt();
    processor = await new Proxy(anchoring.devchain.url).start();
    node = await new Proxy(anchoring.devchain.url).start();
    service = anchoring.another({
      KELLET_ARC_URL: processor.url,
      // There is no header source besides the node.
      KELLET_HEADERS_URL: '',
      KELLET_NODE_RPC_URL: `${node.url.replace('http://', 'http://user:pass%20word@')}/rpc`,
    });
    await service.start!();
  });
  after(async () => {
    await service?.stop!();
    for (const proxy of [processor, node]) proxy?.close();
    await anchoring?.stop();
  });
  afterEach(async () => {
    processor.refuses = () => false;
    node.change = (body) => body;
    await anchoring.devchain.clearFaults();
  });

  const isStatus = (method: string, path: string) => method === 'GET' && path.startsWith('/v1/tx/');
  /** Seals batches and waits until the network has their transactions. */
  const sent = async (count: number): Promise<TestBatch[]> => {
    const batches: TestBatch[] = [];
    for (let i = 0; i < count; i += 1) batches.push(await sealBatch(anchoring.platform.database, [newPoint(newId())]));
    for (const batch of batches) await reaches(anchoring, batch, 'seen');
    return batches;
  };

  it('proves what the processor never reports as mined', async () => {
    await anchoring.devchain.control('faults', { drop_callbacks: true });
    const batches = await sent(3);
    processor.refuses = () => true;
    await expectAnchored(anchoring, batches);
    processor.refuses = isStatus;
    await expectAnchored(anchoring, await sent(2));
    // What was proven once stays proven when the processor is back.
    processor.refuses = () => false;
    await expectAnchored(anchoring, await sent(1));
  });

  it('proves nothing from transactions that are not those of the block', async () => {
    await anchoring.devchain.control('faults', { drop_callbacks: true });
    const [batch] = (await sent(1)) as [TestBatch];
    processor.refuses = isStatus;
    // A transaction of the block is missing.
    let lies = 0;
    node.change = (body) => {
      const response = JSON.parse(body) as { result?: { tx?: string[] } };
      if (!Array.isArray(response.result?.tx)) return body;
      lies += 1;
      response.result.tx.unshift('00'.repeat(32));
      return JSON.stringify(response);
    };
    await anchoring.devchain.control('mine', { count: 3 });
    await eventually(() => lies >= 3, 20_000);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(await statusOf(anchoring, batch.batchId)).to.equal('seen');
    processor.refuses = () => false;
    await expectAnchored(anchoring, [batch]);
  });

  it('reads the other blocks although the node does not give one of them', async () => {
    await anchoring.devchain.control('faults', { drop_callbacks: true });
    await anchoring.devchain.control('mine', { count: 1 });
    const { block_hash: missing } = await anchoring.devchain.state();
    node.change = (body) => {
      const { result } = JSON.parse(body) as { result?: { hash?: string; tx?: string[] } };
      if (!Array.isArray(result?.tx) || result.hash !== missing) return body;
      return JSON.stringify({ id: 0, result: null, error: { code: -1, message: 'Block not available (pruned data)' } });
    };
    const batches = await sent(1);
    processor.refuses = isStatus;
    await expectAnchored(anchoring, batches);
  });

  it('proves again what a reorganisation has moved to another block', async () => {
    await anchoring.devchain.control('faults', { drop_callbacks: true });
    const batches = await sent(2);
    processor.refuses = isStatus;
    await expectAnchored(anchoring, batches);
    await anchoring.devchain.control('reorg', { depth: 3 });
    await expectAnchored(anchoring, batches);
  });

  it('reads each block once, and none while nothing waits', async () => {
    await expectAnchored(anchoring, await sent(1));
    const blocks = () => node.requests.filter((body) => body.includes('"getblock"'));
    const before = blocks().length;
    await anchoring.devchain.control('mine', { count: 5 });
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const read = blocks().slice(before);
    expect(new Set(read).size).to.equal(read.length);
  });

  describe('headers', () => {
    let test: TestDatabase;
    let chain: TestChain;
    let tracks: Proxy;
    before(async () => {
      test = await createTestDatabase();
      chain = await startTestChain();
      tracks = await new Proxy(chain.url).start();
    });
    after(async () => {
      tracks?.close();
      await chain?.stop();
      await test?.drop();
    });
    const hashes = async () =>
      (await test.database.system((tx) => storedHeaders(tx, 0, 2000))).map((row) => row.blockHash);

    it('are those of the header source, and come from the node while it is away', async () => {
      await chain.control('mine', { count: 700 });
      const rpc = new NodeRpc(`${chain.url}/rpc`);
      const source = new HeadersWithFallback(new ChainTracks(tracks.url), rpc, createLogger('silent'));
      const headers = new HeaderChain(test.database, source, rulesOf('local'), createLogger('silent'));
      expect(await rpc.tip()).to.deep.equal(await new ChainTracks(chain.url).tip());
      expect(await rpc.headers(3, 690)).to.deep.equal(await new ChainTracks(chain.url).headers(3, 690));
      expect(await rpc.headers(700, 900)).to.deep.equal(await new ChainTracks(chain.url).headers(700, 900));
      tracks.refuses = () => true;
      await headers.follow();
      const before = await hashes();
      expect(before.at(-1)).to.equal((await chain.state())['block_hash']);
      await chain.control('reorg', { depth: 4 });
      await headers.follow();
      expect((await hashes()).at(-1)).to.equal((await chain.state())['block_hash']);
      tracks.refuses = () => false;
      await chain.control('mine', { count: 2 });
      await headers.follow();
      expect((await hashes()).at(-1)).to.equal((await chain.state())['block_hash']);
    });

    it('make a process ready as long as one of the two responds', async () => {
      const settings = { arcUrl: '', arcToken: '', headersUrl: tracks.url, nodeRpcUrl: `${chain.url}/rpc` };
      const check = (more: Partial<typeof settings> = {}) =>
        chainChecks({ ...settings, ...more })['headers']!().then(
          () => 'ready',
          () => 'unready',
        );
      expect(await check()).to.equal('ready');
      tracks.refuses = () => true;
      expect(await check()).to.equal('ready');
      expect(await check({ nodeRpcUrl: '' })).to.equal('unready');
      expect(await check({ nodeRpcUrl: 'http://127.0.0.1:1/' })).to.equal('unready');
      expect(await check({ headersUrl: '' })).to.equal('ready');
    });
  });
});
