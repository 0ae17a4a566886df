import { expect } from 'chai';
import { eventually } from '../../platform/testing/eventually.ts';
import { CommandFeed } from './command-feed.ts';

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

describe('command feed', () => {
  /** A waiter of up to a minute: how often it looked, and its result. */
  interface Waiting {
    readonly name: string;
    looks: number;
    result: string | undefined;
    readonly leave: () => void;
  }
  let feed: CommandFeed;
  let looked: string[];
  /** Commands to be taken by the first look. */
  let commands: string[];
  /** When a look reports the next commands as due, and the rollouts that hold back commands. */
  let next: number | undefined;
  let heldBy: string[];

  beforeEach(() => {
    // The test wakes the feed itself.
    feed = new CommandFeed({ listen: () => undefined });
    looked = [];
    commands = [];
    next = undefined;
    heldBy = [];
  });

  function wait(name: string, { key = 'acme/d1', max = 2, milliseconds = 60_000 } = {}): Waiting {
    const leaving = new AbortController();
    const waiting: Waiting = { name, looks: 0, result: undefined, leave: () => leaving.abort() };
    const look = () => {
      waiting.looks += 1;
      looked.push(name);
      return Promise.resolve(commands.shift() ?? '');
    };
    void feed
      .until({
        ...{ key, milliseconds, max, look, signal: leaving.signal },
        found: (command) => command !== '',
        next: () => next,
        heldBy: () => heldBy,
      })
      .then((result) => (waiting.result = result));
    return waiting;
  }
  const results = (...all: Waiting[]) => all.map(({ result }) => result);

  it('returns each of its keys once in as many calls as asked for, whatever comes and goes meanwhile', () => {
    const leave = Array.from({ length: 25 }, (_, n) => feed.watch(`acme/d${n}`, () => undefined));
    const first = Array.from({ length: 5 }, () => feed.nextKeys(10));
    leave[20]!();
    feed.watch('acme/late', () => undefined);
    const keys = [...first, ...Array.from({ length: 5 }, () => feed.nextKeys(10))].flat();
    const wanted = [...Array(25).keys()].filter((n) => n !== 20).map((n) => `acme/d${n}`);
    expect(new Set(keys)).to.include.all.keys([...wanted, 'acme/late']);
    expect(Math.max(...first.map((part) => part.length))).to.equal(3);
    expect(new CommandFeed({ listen: () => undefined }).nextKeys(10)).to.deep.equal([]);
  });

  it('dismisses the oldest waiter when too many wait, without another look', async () => {
    const [a, b] = [wait('a'), wait('b')];
    await settled();
    expect(results(a, b)).to.deep.equal([undefined, undefined]);
    const c = wait('c');
    await settled();
    expect(results(a, b, c)).to.deep.equal(['', undefined, undefined]);
    expect(a.looks).to.equal(1);
    const d = wait('d');
    await settled();
    expect(results(b, c, d)).to.deep.equal(['', undefined, undefined]);
    for (const { leave } of [c, d]) leave();
  });

  it('limits waiters per key', async () => {
    const [a, b, other] = [wait('a'), wait('b'), wait('other', { key: 'acme/d2' })];
    await settled();
    expect(results(a, b, other)).to.deep.equal([undefined, undefined, undefined]);
    for (const { leave } of [a, b, other]) leave();
  });

  it('does not dismiss waiters without a limit', async () => {
    const [a, b] = [wait('a'), wait('b')];
    const c = wait('c', { milliseconds: 0 });
    await settled();
    expect(results(a, b, c)).to.deep.equal([undefined, undefined, '']);
    for (const { leave } of [a, b]) leave();
  });

  it('gives new commands to the newest waiter', async () => {
    const [a, b] = [wait('a'), wait('b')];
    await settled();
    looked = [];
    commands = ['reboot'];
    feed.wake('acme/d1');
    await settled();
    expect(looked).to.deep.equal(['b', 'a']);
    expect(results(a, b)).to.deep.equal([undefined, 'reboot']);
    a.leave();
  });

  it('takes nothing for an aborted waiter', async () => {
    const a = wait('a');
    await settled();
    commands = ['reboot'];
    a.leave();
    await settled();
    expect(a).to.include({ looks: 1, result: '' });
    expect(commands).to.deep.equal(['reboot']);
  });

  it('has room again after a waiter has left', async () => {
    const [a, b] = [wait('a'), wait('b')];
    await settled();
    b.leave();
    await settled();
    const c = wait('c');
    await settled();
    expect(results(a, c)).to.deep.equal([undefined, undefined]);
    for (const { leave } of [a, c]) leave();
  });

  it('looks once while nothing wakes it and nothing becomes due', async () => {
    const a = wait('a', { milliseconds: 50 });
    await new Promise((resolve) => setTimeout(resolve, 80));
    expect(a).to.include({ looks: 1, result: '' });
  });

  it('looks when more becomes due, and not before', async () => {
    next = 200;
    const a = wait('a');
    await new Promise((resolve) => setTimeout(resolve, 120));
    expect(a.looks).to.equal(1);
    commands = ['reboot'];
    await new Promise((resolve) => setTimeout(resolve, 150));
    expect(a).to.include({ looks: 2, result: 'reboot' });
  });

  it('looks when a holder releases commands', async () => {
    heldBy = ['acme/rollout'];
    const a = wait('a');
    await settled();
    // One more look after it started to wait for the holder, which may have released them in between.
    expect(a).to.include({ looks: 2, result: undefined });
    commands = ['ota_start'];
    feed.wake('acme/rollout');
    await settled();
    expect(a).to.include({ looks: 3, result: 'ota_start' });
  });

  it('wakes all waiters when hints have been dropped', async () => {
    let receive: (channel: string, payload: string) => void = () => undefined;
    feed = new CommandFeed({ listen: (_channels, received) => (receive = received) });
    const waiting = [wait('a'), wait('b', { key: 'acme/d2' })];
    await settled();
    commands = ['reboot', 'reboot'];
    receive('kellet_commands', '');
    await settled();
    expect(results(...waiting)).to.deep.equal(['reboot', 'reboot']);
  });

  it('wakes the others too when the wake of one fails', async () => {
    let receive: (channel: string, payload: string) => void = () => undefined;
    feed = new CommandFeed({ listen: (_channels, received) => (receive = received) });
    feed.watch('acme/d0', () => {
      throw new Error('failed');
    });
    let wakes = 0;
    feed.watch('acme/d1', () => (wakes += 1));
    expect(() => receive('kellet_commands', '')).to.throw('failed');
    await eventually(() => wakes === 1);
    expect(() => receive('kellet_commands', '')).to.throw('failed');
    await eventually(() => wakes === 2);
  });

  it('wakes a fleet that waits for one rollout in parts, and a single device at once meanwhile', async () => {
    heldBy = ['acme/rollout'];
    const fleet = Array.from({ length: 1200 }, (_, index) => wait('fleet', { key: `acme/fleet-${index}` }));
    await settled();
    heldBy = [];
    const single = wait('single');
    const gone = fleet[0]!;
    await settled();
    const lookedBefore = fleet.map(({ looks }) => looks);
    const woken = () => fleet.filter(({ looks }, index) => looks > lookedBefore[index]!).length;
    feed.wake('acme/rollout');
    // Asked for again, those that are still to be woken are woken once.
    feed.wake('acme/rollout');
    gone.leave();
    feed.wake('acme/d1');
    await settled();
    expect(single.looks).to.equal(2);
    expect(woken()).to.be.within(1, 500);
    const looks = () => fleet.reduce((sum, each, index) => sum + each.looks - lookedBefore[index]!, 0);
    await eventually(() => woken() === 1199 && looks() >= 1699);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(looks()).to.equal(1699);
    expect(gone.looks).to.equal(lookedBefore[0]);
  });
});
