import { expect } from 'chai';
import type { ShownRollout } from '../device-link/ota/rollouts/shown-rollouts.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { codeOf } from '../platform/testing/refusals.ts';
import { RolloutFeed } from './rollout-feed.ts';

describe('the feed of rollouts', () => {
  let feed: RolloutFeed;
  let shown: Map<string, ShownRollout>;
  let changed: (resource: string | undefined) => void;
  /** The ids of each read. */
  let reads: string[][];
  /** Awaited by reads after they have taken what they return. */
  let hold: Promise<void>;
  let held: { readonly tenantId: string; readonly until: Promise<void> } | undefined;
  let isBroken: boolean;

  beforeEach(() => {
    shown = new Map();
    reads = [];
    hold = Promise.resolve();
    isBroken = false;
    held = undefined;
    feed = new RolloutFeed({
      read: async (tenantId, ids) => {
        reads.push([...ids]);
        if (isBroken) throw new Error('the database is unavailable');
        const found = new Map([...shown].filter(([id]) => ids.includes(id)));
        await hold;
        if (tenantId === held?.tenantId) await held.until;
        return found;
      },
      follow: (follower) => (changed = follower),
      logger: createLogger('silent'),
      roundMilliseconds: 50,
    });
  });
  afterEach(() => feed.close());

  const set = (id: string, revision: number, facts: object = {}) =>
    shown.set(id, { resource: `ns/${id}`, revision: BigInt(revision), rollout: { revision, ...facts } });
  const watch = async (id: string) => {
    const received: number[] = [];
    const revisionOf = (message: string) => (JSON.parse(message) as { rollout: { revision: number } }).rollout.revision;
    const { current, stop } = await feed.subscribe('acme', id, (message) => received.push(revisionOf(message)));
    return { received, current: () => revisionOf(current()), stop };
  };

  it('reads a changed rollout once, however many sockets watch it', async () => {
    set('r1', 1);
    const all = await Promise.all(Array.from({ length: 200 }, () => watch('r1')));
    expect(reads).to.deep.equal([['r1']]);
    for (let revision = 2; revision < 50; revision += 1) {
      set('r1', revision);
      changed('acme/ns/r1');
    }
    await eventually(() => all.every(({ received }) => received.at(-1) === 49));
    expect(reads.length).to.be.at.most(3);
    changed('acme/ns/other');
    changed('other/ns/r1');
    set('r2', 1);
    const second = await watch('r2');
    changed('acme/ns/r2');
    changed('acme/ns/r1');
    const before = reads.length;
    await eventually(() => reads.length === before + 1);
    // Those of a tenant are read together.
    expect(reads.at(-1)).to.have.members(['r1', 'r2']);
    for (const { stop } of [...all, second]) stop();
    changed(undefined);
    changed('acme/ns/r1');
    set('r3', 1);
    await watch('r3');
    expect(reads.length).to.equal(before + 2);
  });

  it('sends nothing if only the time of the change differs', async () => {
    set('r1', 1, { revision: 0, updated_at: 'a' });
    const one = await watch('r1');
    set('r1', 2, { revision: 0, updated_at: 'b' });
    changed('acme/ns/r1');
    await eventually(() => reads.length === 2);
    set('r1', 3, { revision: 3, updated_at: 'c' });
    changed('acme/ns/r1');
    await eventually(() => one.received.length > 1);
    expect(one.received).to.deep.equal([0, 3]);
  });

  it('misses no change while a rollout is read for the first time, and never returns to an older state', async () => {
    set('r1', 1);
    let release = (): void => undefined;
    hold = new Promise((resolve) => (release = resolve));
    const watching = watch('r1');
    await eventually(() => reads.length === 1);
    set('r1', 2);
    hold = Promise.resolve();
    changed('acme/ns/r1');
    // The second read ends before the first.
    await eventually(() => reads.length === 2);
    release();
    const one = await watching;
    await eventually(() => one.current() === 2);
    expect(one.received).to.deep.equal([2]);
  });

  it('reads all again when changes may have been missed, and what could not be read', async () => {
    set('r1', 1);
    const one = await watch('r1');
    set('r1', 2);
    isBroken = true;
    changed(undefined);
    await eventually(() => reads.length > 2);
    isBroken = false;
    await eventually(() => one.received.includes(2));
  });

  it('shows those of one tenant while those of another cannot be read for long', async () => {
    set('r1', 1);
    const other = await feed.subscribe('other', 'r1', () => undefined);
    const mine = await watch('r1');
    const { promise, resolve } = Promise.withResolvers<void>();
    held = { tenantId: 'other', until: promise };
    for (const revision of [2, 3]) {
      set('r1', revision);
      changed('other/ns/r1');
      changed('acme/ns/r1');
      await eventually(() => mine.received.at(-1) === revision);
    }
    resolve();
    other.stop();
  });

  it('refuses rollouts that do not exist or cannot be read', async () => {
    expect(await codeOf(watch('none'))).to.equal('NOT_FOUND');
    isBroken = true;
    const failure = await watch('r1').catch((error: Error) => error);
    expect(failure).to.have.property('message', 'the database is unavailable');
    isBroken = false;
    set('r1', 1);
    expect((await watch('r1')).current()).to.equal(1);
  });
});
