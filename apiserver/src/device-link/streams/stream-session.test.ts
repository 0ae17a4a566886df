import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { RpcRecord } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { StreamSession } from './stream-session.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;
const heapUsed = (): number => {
  collectGarbage();
  return process.memoryUsage().heapUsed;
};

describe('the session of a stream', () => {
  const feed = { watch: () => () => undefined };
  const begin = (take: () => Promise<unknown> = () => Promise.reject(new Error('nothing is carried'))) =>
    new StreamSession('acme', 'device', {
      feed: feed as unknown as ConstructorParameters<typeof StreamSession>[2]['feed'],
      delivery: { take } as unknown as ConstructorParameters<typeof StreamSession>[2]['delivery'],
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

  it('keeps the text of commands that the device has not read', async () => {
    const params = { many: Array.from({ length: 20_000 }, () => ({})) };
    const row = { method: 'm', status: 'sent', error: '', created_at: new Date(), expires_at: new Date() };
    const taken = () => ({
      commands: Array.from({ length: 5 }, (_, n) => ({
        ...row,
        correlation_id: String(n),
        params: structuredClone(params),
      })),
      nextMilliseconds: undefined,
      heldBy: [],
    });
    const sessions: StreamSession[] = [];
    const before = heapUsed();
    for (let count = 0; count < 20; count += 1) {
      const session = begin(async () => taken());
      session.carry(new Map([['device', undefined]]));
      await session.changed();
      sessions.push(session);
    }
    // As objects they take 6 MiB for each session.
    expect((heapUsed() - before) / 20).to.be.below(500_000);
    const read = Array.from({ length: 5 }, () => sessions[0]!.next()!.event.value as RpcRecord);
    expect(read.map(({ correlationId }) => correlationId)).to.deep.equal(['0', '1', '2', '3', '4']);
    expect(read[4]!.params).to.deep.equal(params);
    expect(sessions[0]!.next()).to.equal(undefined);
  });

  it('watches nothing once it is over, although it was taking commands', async () => {
    const watched = new Set<string>();
    const watch = (key: string) => {
      watched.add(key);
      return () => watched.delete(key);
    };
    const answer = Promise.withResolvers<unknown>();
    const session = new StreamSession('acme', 'device', {
      ...{ feed: { watch }, delivery: { take: () => answer.promise }, failed: () => undefined },
    } as unknown as ConstructorParameters<typeof StreamSession>[2]);
    session.carry(new Map([['device', undefined]]));
    const taking = session.changed();
    session.end();
    answer.resolve({ commands: [], nextMilliseconds: undefined, heldBy: ['rollout'] });
    await taking;
    expect([...watched]).to.deep.equal([]);
  });
});
