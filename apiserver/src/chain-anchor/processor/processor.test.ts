import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { txidOf } from '@kellet/verify';
import { expect } from 'chai';
import { startTestChain, type TestChain } from '../testing/test-chain.ts';
import { type FeeRate, floorRate } from './fees.ts';
import { Processor } from './processor.ts';

const maximumRate = { satoshis: 500, bytes: 1000 };
const onHighRate = (): void => undefined;

describe('a submission to the processor', () => {
  let chain: TestChain;
  let raw: Buffer;
  before(async () => {
    chain = await startTestChain();
    const address = '1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2';
    const { raw_tx: text } = await chain.control('fund', { address, satoshis: 5000 });
    raw = Buffer.from(text as string, 'hex');
  });
  after(() => chain?.stop());
  const submit = (bytes: Uint8Array, callbackUrl: string) =>
    new Processor({ url: chain.url, token: '', callbackUrl, maximumRate, onHighRate }).submit(bytes);

  it('succeeds without callbacks if the processor does not accept their URL', async () => {
    for (const callbackUrl of ['', 'http://localhost:1/callback', 'no URL']) {
      const submission = await submit(raw, callbackUrl);
      expect(submission, callbackUrl).to.have.nested.property('report.status', 'MINED');
    }
  });

  it('is refused if the bytes are no transaction, with and without callbacks', async () => {
    for (const callbackUrl of ['', 'https://kellet.example/callback']) {
      expect(await submit(Buffer.from('00'), callbackUrl)).to.have.property('refused');
    }
  });
});

describe('a response of the processor', () => {
  let server: Server;
  let url: string;
  const raw = Buffer.from('transaction');
  const other = 'ab'.repeat(32);
  let body = '';
  before((done) => {
    server = createServer((_request, response) => void response.end(body)).listen(0, '127.0.0.1', () => {
      url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      done();
    });
  });
  after(() => server.close());

  it('about another transaction says nothing', async () => {
    const processor = new Processor({ url, token: '', callbackUrl: '', maximumRate, onHighRate });
    const about = (txid: string) => JSON.stringify({ txid, txStatus: 'MINED', merklePath: 'ab', blockHash: other });
    const outcomeOf = (call: Promise<unknown>) =>
      call.then(
        () => 'report',
        (error: Error) => error.name,
      );
    body = about(other);
    expect(await outcomeOf(processor.status(txidOf(raw)))).to.equal('ProcessorUnavailable');
    expect(await outcomeOf(processor.submit(raw))).to.equal('ProcessorUnavailable');
    body = about(txidOf(raw).toUpperCase());
    expect(await outcomeOf(processor.status(txidOf(raw)))).to.equal('report');
    expect(await outcomeOf(processor.submit(raw))).to.equal('report');
  });
});

describe('the fee that the processor asks for', () => {
  let server: Server;
  let policy = '';
  before((done) => {
    server = createServer((_request, response) => void response.end(policy)).listen(0, '127.0.0.1', done);
  });
  after(() => server.close());

  const cases: [asked: string, paid: FeeRate][] = [
    ['"satoshis":1,"bytes":1000', { satoshis: 1, bytes: 1000 }],
    ['"satoshis":5,"bytes":10', { satoshis: 5, bytes: 10 }],
    ['"satoshis":501,"bytes":1000', maximumRate],
    ['"satoshis":100000000,"bytes":1', maximumRate],
    ['"satoshis":1e308,"bytes":1e-308', maximumRate],
    ['"satoshis":1,"bytes":0', floorRate],
    ['"satoshis":"9","bytes":1', floorRate],
  ];
  for (const [asked, paid] of cases) {
    it(`is ${paid.satoshis} for ${paid.bytes} bytes at most: {${asked}}`, async () => {
      policy = `{"policy":{"miningFee":{${asked}}}}`;
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      let isHigh = false;
      const processor = new Processor({
        ...{ url, token: '', callbackUrl: '', maximumRate },
        onHighRate: () => (isHigh = true),
      });
      expect(await processor.feeRate()).to.deep.equal(paid);
      expect(isHigh).to.equal(paid === maximumRate);
    });
  }
});
