import { expect } from 'chai';
import { StreamSession } from './stream-session.ts';

describe('the session of a stream', () => {
  const feed = { watch: () => () => undefined };
  const delivery = { take: () => Promise.reject(new Error('nothing is carried')) };
  const begin = () =>
    new StreamSession('acme', 'device', {
      feed: feed as unknown as ConstructorParameters<typeof StreamSession>[2]['feed'],
      delivery: delivery as unknown as ConstructorParameters<typeof StreamSession>[2]['delivery'],
      failed: () => undefined,
    });
  const isPending = async (promise: Promise<void>): Promise<boolean> =>
    Promise.race([promise.then(() => false), new Promise<boolean>((resolve) => setImmediate(() => resolve(true)))]);

  it('has sixteen answers for a device that does not read, of whatever kind', async () => {
    const session = begin();
    for (let count = 0; count < 15; count += 1) {
      await (count % 2 === 0
        ? session.ready()
        : session.acknowledge({ correlationId: String(count), code: '', message: '' }));
    }
    const last = session.ready();
    expect(await isPending(last)).to.equal(true);
    expect(session.next()?.event.case).to.equal('ready');
    expect(await isPending(last)).to.equal(false);
  });

  it('keeps no one waiting once it is over', async () => {
    const session = begin();
    for (let count = 0; count < 15; count += 1) await session.ready();
    const last = session.ready();
    session.end();
    await last;
    await session.ready();
  });
});
