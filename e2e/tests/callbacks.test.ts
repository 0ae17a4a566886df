// Callbacks of the transaction processor.
import { createHmac, randomBytes } from 'node:crypto';
import { expect } from 'chai';
import { followEvents } from '../../dev/clients/broker-events.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { anonymous } from '../testing/fixtures.ts';

const sign = (body: string, secret = stack().info.callbackSecret) =>
  `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;

const post = (body: string, signature?: string) =>
  anonymous().send<{ code: string; message: string }>('POST', '/api/v1/callbacks/arc', {
    body,
    headers: signature === undefined ? {} : { 'x-arc-signature': signature },
  });

const rejections = async () => {
  const { body } = await new Rest(stack().info.metrics).send<string>('GET', '/metrics');
  const line = /rejected_total\{[^}]*reason="invalid_signature"[^}]*\} (\d+)/.exec(body);
  return Number(line?.[1] ?? 0);
};

describe('callbacks of the transaction processor', () => {
  const payload = () => JSON.stringify({ txid: randomBytes(32).toString('hex'), txStatus: 'SEEN_ON_NETWORK' });

  it('reach the broker unchanged only if their signature is valid', async () => {
    const events = await followEvents(stack().info.natsUrl, 'arc.callbacks');
    try {
      const before = await rejections();
      const refused = [payload(), payload(), payload(), payload()] as const;
      const responses = [
        await post(refused[0]),
        await post(refused[1], sign(refused[1], 'another secret')),
        await post(refused[2], sign(refused[3])),
        await post(refused[3], sign(refused[3]).slice('sha256='.length)),
      ];
      for (const { status, body } of responses) {
        expect({ status, code: body.code }).to.deep.equal({ status: 401, code: 'UNAUTHENTICATED' });
      }
      expect((await rejections()) - before).to.equal(4);

      const accepted = payload();
      expect((await post(accepted, sign(accepted))).status).to.equal(200);
      const received = () => events.received.map(({ data }) => JSON.stringify(data));
      await waitUntil(() => received().includes(accepted), { what: 'the callback', timeoutMilliseconds: 5000 });
      for (const body of refused) expect(received()).not.to.include(body);
    } finally {
      await events.close();
    }
  });

  it('are rejected if they are not JSON, after verifying the signature', async () => {
    const malformed = await post('{"txid":', sign('{"txid":'));
    expect({ status: malformed.status, code: malformed.body.code }).to.deep.equal({
      status: 400,
      code: 'INVALID_ARGUMENT',
    });
    expect((await post('{"txid":')).status).to.equal(401);
  });
});
