// Devchain as a process, over HTTP: the behaviour that its clients rely on.
import { createHmac } from 'node:crypto';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MerklePath, Transaction } from '@bsv/sdk';
import { checkHeaderChain, parseHeader, toDisplayHex } from '@kellet/verify';
import { expect } from 'chai';
import {
  callbackShape,
  healthShape,
  messageShape,
  misfits,
  policyShape,
  postShape,
  problemShape,
  type Shape,
  transactionShapes,
} from './testing/arc-shapes.ts';
import { type CallbackListener, listenForCallbacks } from './testing/callback-listener.ts';
import { type DevchainProcess, startDevchain, until } from './testing/process.ts';
import { type Spendable, TestWallet } from './testing/wallet.ts';

const SECRET = 'callback secret';

describe('devchain over HTTP', () => {
  const wallet = new TestWallet();
  const directory = mkdtempSync(join(tmpdir(), 'devchain-'));
  const environment = { KELLET_CALLBACK_HMAC_SECRET: SECRET };
  let devchain: DevchainProcess;
  let listener: CallbackListener;
  let coins: Spendable[] = [];

  before(async () => {
    devchain = await startDevchain(directory, environment);
    listener = await listenForCallbacks();
  });

  after(async () => {
    await devchain.end('SIGTERM');
    await listener.close();
  });

  beforeEach(async () => {
    await devchain.call('DELETE', '/dev/faults');
    if (coins.length < 10) coins = await fund(40);
    listener.received.length = 0;
  });

  async function fund(outputs: number): Promise<Spendable[]> {
    const { json } = await devchain.call('POST', '/dev/fund', { address: wallet.address, satoshis: 100, outputs });
    const source = Transaction.fromHex(json.raw_tx as string);
    source.merklePath = MerklePath.fromHex(json.bump as string);
    return Array.from({ length: outputs }, (_, index) => ({ source, index }));
  }

  const anchor = (options = {}, coin = coins.pop()!) => wallet.anchor(coin, options);
  const post = (transaction: Transaction, headers = {}) =>
    devchain.call('POST', '/v1/tx', { rawTx: transaction.toHexEF() }, headers);
  const get = (transaction: Transaction) => devchain.call('GET', `/v1/tx/${transaction.id('hex')}`);
  const mine = () => devchain.call('POST', '/dev/mine', { count: 1 });
  const fits = (value: unknown, shape: Shape) => expect(misfits(value, shape)).to.deep.equal([]);
  const callbacks = (count: number, path: string) =>
    until(`${count} callbacks to ${path}`, () => {
      const found = listener.received.filter((callback) => callback.path === path);
      return found.length >= count ? found : undefined;
    });

  describe('as the processor', () => {
    it('returns policy and health', async () => {
      fits((await devchain.call('GET', '/v1/policy')).json, policyShape);
      fits((await devchain.call('GET', '/v1/health')).json, healthShape);
    });

    it('moves a transaction from SEEN_ON_NETWORK to MINED, idempotently', async () => {
      const transaction = await anchor();
      for (let i = 0; i < 2; i++) {
        const { status, json } = await post(transaction);
        expect(status).to.equal(200);
        fits(json, postShape(transactionShapes.seen));
      }
      fits((await get(transaction)).json, transactionShapes.seen);
      await mine();
      fits((await get(transaction)).json, transactionShapes.mined);
      fits((await post(transaction)).json, postShape(transactionShapes.mined));
    });

    it('proves it with a BUMP under the header of its block', async () => {
      const transaction = await anchor();
      await post(transaction);
      await mine();
      const { json } = await get(transaction);
      const header = (await devchain.call('GET', `/header/height/${json.blockHeight as number}`)).json;
      const path = MerklePath.fromHex(json.merklePath as string);
      expect(path.computeRoot(transaction.id('hex'))).to.equal(header.merkleRoot);
      expect(header.hash).to.equal(json.blockHash);
    });

    const formats: { what: string; type: string; body: (transaction: Transaction) => unknown }[] = [
      { what: 'raw hex in JSON', type: 'application/json', body: (t) => ({ rawTx: t.toHex() }) },
      { what: 'BEEF in JSON', type: 'application/json', body: (t) => ({ rawTx: t.toHexBEEF() }) },
      { what: 'EF hex as text', type: 'text/plain', body: (t) => t.toHexEF() },
      { what: 'EF bytes', type: 'application/octet-stream', body: (t) => Uint8Array.from(t.toEF()) },
    ];
    for (const { what, type, body } of formats) {
      it(`accepts ${what}`, async () => {
        const transaction = await anchor();
        const { status, json } = await devchain.call('POST', '/v1/tx', body(transaction), { 'content-type': type });
        expect(status).to.equal(200);
        fits(json, postShape(transactionShapes.seen));
        expect(json.txid).to.equal(transaction.id('hex'));
      });
    }

    it('accepts several at once, and returns an array with the rejected ones last', async () => {
      const [good, bad, fine] = [await anchor(), await anchor({ fee: 0 }), await anchor()];
      const body = [good, bad, fine].map((transaction) => ({ rawTx: transaction.toHexEF() }));
      const { status, json } = await devchain.call('POST', '/v1/txs', body);
      expect(status).to.equal(200);
      const results = json as unknown as Record<string, unknown>[];
      expect(results.map(({ txid }) => txid)).to.deep.equal([good, fine, bad].map((t) => t.id('hex')));
      fits(results[0], postShape(transactionShapes.seen));
      fits(results[2], problemShape(465, /fee is too low/, true));
    });

    it('rejects a BEEF whose root is not on this chain', async () => {
      const transaction = await anchor();
      const source = transaction.inputs[0]!.sourceTransaction!;
      const sound = source.merklePath!;
      source.merklePath = new MerklePath(sound.blockHeight - 1, sound.path);
      const { status, json } = await devchain.call('POST', '/v1/tx', { rawTx: transaction.toHexBEEF() });
      source.merklePath = sound;
      expect(status).to.equal(469);
      fits(json, problemShape(469, /root/, true));
    });

    const refusals: {
      what: string;
      body: (sound: string) => unknown;
      headers?: Record<string, string>;
      status: number;
      shape: Shape;
    }[] = [
      {
        what: 'text that is not hex',
        body: () => ({ rawTx: 'zz' }),
        status: 400,
        shape: problemShape(400, /invalid byte: U\+007A 'z'$/, false),
      },
      {
        what: 'bytes that are not a transaction',
        body: () => ({ rawTx: '00ff' }),
        status: 400,
        shape: problemShape(400, /./, false),
      },
      {
        what: 'nothing',
        body: () => ({ rawTx: '' }),
        status: 400,
        shape: problemShape(400, /empty request body/, false),
      },
      {
        what: 'text that is not JSON',
        body: () => '{',
        status: 400,
        shape: messageShape(/^request body has an error: failed/),
      },
      { what: 'no rawTx', body: () => ({ tx: '' }), status: 400, shape: messageShape(/"rawTx" is missing$/) },
      { what: 'a number', body: () => ({ rawTx: 1 }), status: 400, shape: messageShape(/must be a string$/) },
      {
        what: 'another content type',
        body: () => 'rawTx=00',
        headers: { 'content-type': 'application/x-www-form-urlencoded' },
        status: 400,
        shape: messageShape(/Content-Type has unexpected value/),
      },
      {
        what: 'a callback to localhost',
        body: (rawTx) => ({ rawTx }),
        headers: { 'X-CallbackUrl': 'http://localhost:1/x' },
        status: 400,
        shape: problemShape(400, /^callback URL not acceptable$/, false),
      },
      {
        what: 'a callback to a malformed URL',
        body: (rawTx) => ({ rawTx }),
        headers: { 'X-CallbackUrl': 'nowhere' },
        status: 400,
        shape: problemShape(400, /^invalid callback URL\n/, false),
      },
      {
        what: 'a wait of more than 30 s',
        body: (rawTx) => ({ rawTx }),
        headers: { 'X-MaxTimeout': '31' },
        status: 400,
        shape: problemShape(400, /timeout/, false),
      },
      {
        what: 'a wait that is not a number',
        body: (rawTx) => ({ rawTx }),
        headers: { 'X-MaxTimeout': 'soon' },
        status: 400,
        shape: messageShape(/^parameter "X-MaxTimeout" in header has an error/),
      },
      {
        what: 'a status that does not exist',
        body: (rawTx) => ({ rawTx }),
        headers: { 'X-WaitFor': 'DONE' },
        status: 400,
        shape: problemShape(400, /DONE/, false),
      },
    ];
    for (const { what, body, headers, status, shape } of refusals) {
      it(`rejects ${what} with ${status} and stores nothing`, async () => {
        const transaction = await wallet.anchor(coins[0]!, { mark: 99 });
        const response = await devchain.call('POST', '/v1/tx', body(transaction.toHexEF()), headers);
        expect(response.status).to.equal(status);
        fits(response.json, shape);
        expect((await get(transaction)).status).to.equal(404);
      });
    }

    it('rejects a transaction with the status code of the violated rule', async () => {
      const free = await post(await anchor({ fee: 0 }));
      expect(free.status).to.equal(465);
      fits(free.json, problemShape(465, /^arc error 465: .*\nminimum expected fee: 1, actual fee: 0$/, true));
      const forged = await anchor();
      forged.outputs[1]!.satoshis! -= 1;
      const refused = await post(forged);
      expect(refused.status).to.equal(461);
      fits(refused.json, problemShape(461, /^arc error 461: Signature must be zero for failed CHECK/, true));
    });

    it('returns 404 for unknown transactions', async () => {
      for (const path of [`/v1/tx/${'ab'.repeat(32)}`, '/v1/tx/abcd']) {
        const { status, json } = await devchain.call('GET', path);
        expect(status).to.equal(404);
        fits(json, problemShape(404, /^transaction not found$/, false));
      }
      const { status, json } = await devchain.call('GET', '/v1/nothing');
      expect(status).to.equal(404);
      fits(json, messageShape(/^no matching operation was found$/));
    });

    it('waits for the requested status up to the maximum time', async () => {
      const parent = await anchor();
      const orphan = await wallet.anchor({ source: parent, index: 1 });
      const started = Date.now();
      const { json } = await post(orphan, { 'X-MaxTimeout': '1' });
      fits(json, postShape(transactionShapes.orphan));
      expect(Date.now() - started).to.be.within(900, 3000);

      const waiting = post(orphan, { 'X-WaitFor': 'MINED', 'X-MaxTimeout': '20' });
      await post(parent);
      await mine();
      fits((await waiting).json, postShape(transactionShapes.mined));
    });

    it('marks both spends of an output, and rejects the second once the first is mined', async () => {
      const coin = coins.pop()!;
      const [first, second] = [await anchor({ mark: 1 }, coin), await anchor({ mark: 2 }, coin)];
      await post(first);
      fits((await post(second)).json, postShape(transactionShapes.doubleSpend));
      fits((await get(first)).json, transactionShapes.doubleSpend);
      await mine();
      fits((await get(second)).json, transactionShapes.rejected);
      const { json } = await get(first);
      expect(json).to.include({ txStatus: 'MINED', extraInfo: 'previously double spend attempted' });
    });
  });

  describe('callbacks', () => {
    it('signs the body, includes the token, and has the fields of a status', async () => {
      const transaction = await anchor();
      await post(transaction, { 'X-CallbackUrl': `${listener.url}/one`, 'X-CallbackToken': 's3cret' });
      await mine();
      const [callback] = await callbacks(1, '/one');
      fits(callback!.body, callbackShape(transactionShapes.mined));
      expect(callback!.body.txid).to.equal(transaction.id('hex'));
      const signature = createHmac('sha256', SECRET).update(callback!.text).digest('hex');
      expect(callback!.headers).to.include({
        authorization: 'Bearer s3cret',
        'content-type': 'application/json; charset=UTF-8',
        'x-arc-signature': `sha256=${signature}`,
      });
    });

    it('reports intermediate statuses only with full updates, and no token unless given', async () => {
      const transaction = await anchor();
      await post(transaction, { 'X-CallbackUrl': `${listener.url}/full`, 'X-FullStatusUpdates': 'true' });
      const [seen] = await callbacks(1, '/full');
      fits(seen!.body, callbackShape(transactionShapes.seen));
      expect(seen!.headers.authorization).to.equal(undefined);
      await mine();
      const [, mined] = await callbacks(2, '/full');
      fits(mined!.body, callbackShape(transactionShapes.mined));
    });

    it('reports the rejected one of two spends with its competitor', async () => {
      const coin = coins.pop()!;
      const headers = { 'X-CallbackUrl': `${listener.url}/double` };
      await post(await anchor({ mark: 1 }, coin), headers);
      await post(await anchor({ mark: 2 }, coin), headers);
      await mine();
      const bodies = (await callbacks(2, '/double')).map((callback) => callback.body);
      fits(
        bodies.find((body) => body.txStatus === 'REJECTED'),
        callbackShape(transactionShapes.rejected),
      );
      fits(
        bodies.find((body) => body.txStatus === 'MINED'),
        callbackShape(transactionShapes.mined, 'previously double spend attempted'),
      );
    });

    it('batches if requested', async () => {
      const body = [await anchor(), await anchor()].map((transaction) => ({ rawTx: transaction.toHexEF() }));
      const headers = { 'X-CallbackUrl': `${listener.url}/batch`, 'X-CallbackBatch': 'true', 'X-CallbackToken': 'b' };
      await devchain.call('POST', '/v1/txs', body, headers);
      await mine();
      const [batch] = await callbacks(1, '/batch');
      expect(batch!.body.count).to.equal(2);
      expect(Object.keys(batch!.body)).to.deep.equal(['count', 'callbacks']);
      for (const item of batch!.body.callbacks as unknown[]) fits(item, callbackShape(transactionShapes.mined));
    });

    it('retries after a 503 with the same body', async () => {
      listener.statuses.push(503);
      await post(await anchor(), { 'X-CallbackUrl': `${listener.url}/again` });
      await mine();
      const [first, second] = await callbacks(2, '/again');
      expect(second!.text).to.equal(first!.text);
      expect(second!.at - first!.at).to.be.at.least(1900);
    });

    it('reports a transaction again after a reorganisation', async () => {
      const transaction = await anchor();
      await post(transaction, { 'X-CallbackUrl': `${listener.url}/reorg` });
      await mine();
      await callbacks(1, '/reorg');
      const { json } = await devchain.call('POST', '/dev/reorg', { depth: 1 });
      const [before, after] = (await callbacks(2, '/reorg')).map((callback) => callback.body);
      fits(after, callbackShape(transactionShapes.mined));
      expect(json.stale_block_hashes).to.deep.equal([before!.blockHash]);
      expect(after!.blockHash).not.to.equal(before!.blockHash);
      expect((await devchain.call('GET', `/header/hash/${String(before!.blockHash)}`)).status).to.equal(404);
    });

    it('drops, delays and repeats callbacks on request', async () => {
      await devchain.call('POST', '/dev/faults', { drop_callbacks: true });
      await post(await anchor(), { 'X-CallbackUrl': `${listener.url}/dropped` });
      await mine();
      await until('the dropped callback to be given up', async () => {
        const { json } = await devchain.call('GET', '/dev/state');
        return json.pending_callbacks === 0 ? true : undefined;
      });
      await devchain.call('POST', '/dev/faults', {
        drop_callbacks: false,
        delay_callbacks_ms: 500,
        duplicate_callbacks: 2,
      });
      await post(await anchor(), { 'X-CallbackUrl': `${listener.url}/late` });
      const minedAt = Date.now();
      await mine();
      const late = await callbacks(3, '/late');
      expect(late[0]!.at - minedAt).to.be.at.least(500);
      expect(new Set(late.map((callback) => callback.text)).size).to.equal(1);
      expect(listener.received.filter((callback) => callback.path === '/dropped')).to.deep.equal([]);
    });
  });

  describe('as the header source', () => {
    const header = ['version', 'previousHash', 'merkleRoot', 'time', 'bits', 'nonce', 'height', 'hash'];

    it('serves one chain of headers, as JSON and as bytes, with and without /v2', async () => {
      const { json: tip } = await devchain.call('GET', '/tip');
      expect(Object.keys(tip)).to.deep.equal(header);
      const height = tip.height as number;
      expect((await devchain.call('GET', '/height')).json).to.deep.equal({ height });
      const { bytes } = await devchain.call('GET', `/headers?height=0&count=${height + 100}`);
      const raws = Array.from({ length: height + 1 }, (_, i) => bytes.slice(i * 80, i * 80 + 80));
      expect(bytes.length).to.equal(80 * (height + 1));
      const chain = checkHeaderChain(raws.map((raw, i) => ({ height: i, raw })));
      expect(toDisplayHex(chain.headers.at(-1)!.hash)).to.equal(tip.hash);
      for (const prefix of ['', '/v2']) {
        expect((await devchain.call('GET', `${prefix}/header/height/${height}`)).json).to.deep.equal(tip);
        expect((await devchain.call('GET', `${prefix}/header/hash/${String(tip.hash)}`)).json).to.deep.equal(tip);
        expect((await devchain.call('GET', `${prefix}/header/height/${height}.bin`)).bytes).to.deep.equal(raws.at(-1));
      }
      expect(tip.merkleRoot).to.equal(toDisplayHex(parseHeader(raws.at(-1)!).merkleRoot));
    });

    for (const { path, status } of [
      { path: '/header/height/999999', status: 404 },
      { path: '/header/height/-1', status: 400 },
      { path: '/header/height/4294967296', status: 400 },
      { path: `/header/hash/${'00'.repeat(32)}`, status: 404 },
      { path: '/header/hash/xyz', status: 400 },
      { path: '/headers', status: 400 },
      { path: '/headers?height=0', status: 400 },
      { path: '/headers?height=x&count=1', status: 400 },
      { path: '/nothing', status: 404 },
    ]) {
      it(`returns ${status} for ${path}`, async () => {
        expect((await devchain.call('GET', path)).status).to.equal(status);
      });
    }

    it('returns no bytes beyond the tip', async () => {
      expect((await devchain.call('GET', '/headers?height=999999&count=5')).bytes).to.have.length(0);
    });

    it('streams the current tip and each new one', async () => {
      const stop = new AbortController();
      const response = await fetch(`${devchain.url}/v2/tip/stream`, { signal: stop.signal });
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      const next = async () => JSON.parse((await reader.read()).value!.replace(/^data: /, '')) as { height: number };
      const { height } = await next();
      await mine();
      expect((await next()).height).to.equal(height + 1);
      stop.abort();
    });
  });

  describe('control routes', () => {
    it('funds an address immediately with a proof, also while mining is paused', async () => {
      await devchain.call('POST', '/dev/faults', { pause_mining: true });
      const { json } = await devchain.call('POST', '/dev/fund', { address: wallet.address, satoshis: 7, outputs: 3 });
      expect(Object.keys(json)).to.deep.equal(['txid', 'raw_tx', 'bump', 'block_height', 'block_hash']);
      const transaction = Transaction.fromHex(json.raw_tx as string);
      expect(transaction.id('hex')).to.equal(json.txid);
      expect(transaction.outputs.slice(0, 3).map((output) => output.satoshis)).to.deep.equal([7, 7, 7]);
      const { json: block } = await devchain.call('GET', `/header/height/${json.block_height as number}`);
      expect(block.hash).to.equal(json.block_hash);
      expect(MerklePath.fromHex(json.bump as string).computeRoot(json.txid as string)).to.equal(block.merkleRoot);
    });

    it('responds while the rest is unavailable', async () => {
      await devchain.call('POST', '/dev/faults', { unavailable_ms: 60_000 });
      for (const path of ['/v1/policy', '/tip', '/v1/health']) {
        expect((await devchain.call('GET', path)).status).to.equal(503);
      }
      const { json } = await devchain.call('GET', '/dev/state');
      expect((json.faults as Record<string, number>).unavailable_ms).to.be.within(1, 60_000);
      expect((await mine()).status).to.equal(200);
      await devchain.call('DELETE', '/dev/faults');
      expect((await devchain.call('GET', '/v1/policy')).status).to.equal(200);
    });

    it('merges faults and clears them', async () => {
      await devchain.call('POST', '/dev/faults', { reject_next: 1 });
      const { json } = await devchain.call('POST', '/dev/faults', { drop_callbacks: true });
      expect(json).to.include({ reject_next: 1, drop_callbacks: true, orphan_next: 0 });
      expect((await devchain.call('DELETE', '/dev/faults')).json).to.include({ reject_next: 0, drop_callbacks: false });
    });

    for (const { path, body } of [
      { path: '/dev/faults', body: { nonsense: 1 } },
      { path: '/dev/faults', body: '{' },
      { path: '/dev/mine', body: { count: 0 } },
      { path: '/dev/mine', body: { blocks: 1 } },
      { path: '/dev/mine', body: [] },
      { path: '/dev/reorg', body: { depth: 101 } },
      { path: '/dev/reorg', body: { depth: '1' } },
      { path: '/dev/fund', body: { address: 'nobody', satoshis: 1 } },
      { path: '/dev/fund', body: { address: wallet.address } },
      { path: '/dev/fund', body: { address: wallet.address, satoshis: 2_100_000_000_000_000 } },
      { path: '/dev/fund', body: { address: wallet.address, satoshis: 1, outputs: 0 } },
    ]) {
      it(`rejects ${path} ${JSON.stringify(body)} with a message, and mines nothing`, async () => {
        const { json: before } = await devchain.call('GET', '/dev/state');
        const { status, json } = await devchain.call('POST', path, body);
        expect(status).to.equal(400);
        fits(json, messageShape(/./));
        expect((await devchain.call('GET', '/dev/state')).json).to.deep.equal(before);
      });
    }

    it('returns 404 and 405 for unknown routes and methods', async () => {
      expect((await devchain.call('POST', '/dev/nothing')).status).to.equal(404);
      const { status, headers } = await devchain.call('GET', '/dev/faults');
      expect([status, headers.get('allow')]).to.deep.equal([405, 'POST, DELETE']);
    });
  });

  describe('as a process', () => {
    it('preserves chain, coins, pending transactions and callbacks across kill -9', async () => {
      const [mined, waiting] = [await anchor(), await anchor()];
      await devchain.call('POST', '/dev/faults', { delay_callbacks_ms: 60_000 });
      await post(mined, { 'X-CallbackUrl': `${listener.url}/restart` });
      await mine();
      await post(waiting);
      const { json: before } = await devchain.call('GET', '/dev/state');
      await devchain.end('SIGKILL');
      devchain = await startDevchain(directory, environment);
      const { json: after } = await devchain.call('GET', '/dev/state');
      const kept = ['height', 'block_hash', 'blocks', 'mempool', 'utxos', 'transactions'] as const;
      for (const name of kept) expect(after[name], name).to.equal(before[name]);
      fits((await get(mined)).json, transactionShapes.mined);
      fits((await get(waiting)).json, transactionShapes.seen);
      const [callback] = await callbacks(1, '/restart');
      expect(callback!.body.txid).to.equal(mined.id('hex'));
    });

    it('mines on a timer, requires its token, and exits cleanly on SIGTERM', async () => {
      const other = await startDevchain(mkdtempSync(join(tmpdir(), 'devchain-')), {
        KELLET_DEVCHAIN_BLOCK_MS: '20',
        KELLET_DEVCHAIN_ARC_TOKEN: 'token',
      });
      const { json: start } = await other.call('GET', '/tip');
      await until('a block', async () => {
        const { json } = await other.call('GET', '/tip');
        return (json.height as number) > (start.height as number) ? true : undefined;
      });
      expect((await other.call('GET', '/v1/policy')).status).to.equal(401);
      const authorised = { authorization: 'Bearer token' };
      expect((await other.call('GET', '/v1/policy', undefined, authorised)).status).to.equal(200);
      expect(await other.end('SIGTERM')).to.equal(0);
    });
  });
});
