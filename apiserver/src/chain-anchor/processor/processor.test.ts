import { expect } from 'chai';
import { startTestChain, type TestChain } from '../testing/test-chain.ts';
import { Processor } from './processor.ts';

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
    new Processor({ url: chain.url, token: '', callbackUrl }).submit(bytes);

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
