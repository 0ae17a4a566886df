import { createHmac } from 'node:crypto';
import { expect } from 'chai';
import { Broker } from '../../platform/events/broker.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { Callbacks, isSignatureValid, redactPayload } from './callbacks.ts';

describe('callback signatures', () => {
  const body = Buffer.from('{"txid":"ab"}');
  const hex = createHmac('sha256', 'key').update(body).digest('hex');

  for (const [what, header, want] of [
    ['the right one', `sha256=${hex}`, true],
    ['in capitals', `sha256=${hex.toUpperCase()}`, true],
    ['none', undefined, false],
    ['an empty one', '', false],
    ['without prefix', hex, false],
    ['another algorithm', `sha1=${hex}`, false],
    ['one digit changed', `sha256=${hex.replace(/.$/, (digit) => (digit === '0' ? '1' : '0'))}`, false],
    ['cut short', `sha256=${hex.slice(2)}`, false],
    ['too long', `sha256=${hex}00`, false],
    ['zeros', `sha256=${'0'.repeat(64)}`, false],
  ] as const) {
    it(what, () => expect(isSignatureValid(header, body, 'key')).to.equal(want));
  }

  it('cover the bytes, not the parsed value', () => {
    expect(isSignatureValid(`sha256=${hex}`, Buffer.from('{ "txid":"ab"}'), 'key')).to.equal(false);
    expect(isSignatureValid(`sha256=${hex}`, body, 'other')).to.equal(false);
  });
});

it('logs a malformed payload truncated, printable and without secrets', () => {
  const secret = 'c2VjcmV0LXNlY3JldC1zZWNyZXQ=';
  const shown = redactPayload(Buffer.from(`{"token":"${secret}"\n\u0007${'x '.repeat(500)}`));
  expect(shown).to.contain('[redacted]').and.not.contain(secret);
  expect(shown).to.match(/^[\x20-\x7e]*$/);
  expect(shown.length).to.be.below(300);
});

describe('relay of callbacks', () => {
  let testDatabase: TestDatabase;
  before(async () => {
    testDatabase = await createTestDatabase();
  });
  after(() => testDatabase.drop());

  /** A broker that is unavailable at first, a fault that a real one cannot be made to show reproducibly. */
  class FlakyBroker {
    failures: number;
    readonly published: { payload: string; messageId: string }[] = [];
    constructor(failures: number) {
      this.failures = failures;
    }
    async publish(_subject: string, payload: Uint8Array, messageId: string): Promise<void> {
      if (this.failures-- > 0) throw new Error('away');
      this.published.push({ payload: Buffer.from(payload).toString(), messageId });
    }
  }

  const callbacksOn = (broker: FlakyBroker) =>
    new Callbacks(testDatabase.database, broker as unknown as Broker, createLogger('silent'), createMetrics(), {
      secret: '',
      skipValidation: true,
    });
  const bodies = ['{"n":1}', '[{"n":2}]', '{"n": 3}'];

  it('keeps accepted callbacks until the broker is back, in order, also across a restart', async () => {
    const first = callbacksOn(new FlakyBroker(Infinity));
    first.start();
    for (const body of bodies) await first.receive(undefined, Buffer.from(body));
    await first.stop();
    const broker = new FlakyBroker(2);
    const second = callbacksOn(broker);
    second.start();
    const deadline = Date.now() + 5000;
    while (broker.published.length < 3 && Date.now() < deadline)
      await new Promise((resolve) => setTimeout(resolve, 20));
    await second.stop();
    expect(broker.published.map(({ payload }) => payload)).to.deep.equal(bodies);
    expect(new Set(broker.published.map(({ messageId }) => messageId)).size).to.equal(3);
  });

  it('skips a callback that is too large for the broker', async () => {
    const broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, createLogger('fatal'));
    try {
      const callbacks = new Callbacks(testDatabase.database, broker, createLogger('silent'), createMetrics(), {
        secret: '',
        skipValidation: true,
      });
      await callbacks.receive(undefined, Buffer.from(`{"a":"${'x'.repeat(1024 * 1024)}"}`));
      await callbacks.receive(undefined, Buffer.from('{"after":true}'));
      callbacks.start();
      const waiting = () =>
        testDatabase.database.system(async (tx) => {
          const { rows } = await tx.query('SELECT 1 FROM arc_callbacks WHERE published_at IS NULL');
          return rows.length;
        });
      const deadline = Date.now() + 8000;
      while ((await waiting()) > 0 && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 50));
      await callbacks.stop();
      expect(await waiting()).to.equal(0);
    } finally {
      await broker.close();
    }
  }).timeout(15_000);
});
