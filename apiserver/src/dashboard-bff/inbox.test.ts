import { expect } from 'chai';
import { Inbox } from './inbox.ts';

describe('an inbox', () => {
  let now: number;
  let log: string[];
  let release: (() => void)[];
  let inbox: Inbox;
  beforeEach(() => {
    now = 0;
    log = [];
    release = [];
    inbox = new Inbox({
      socket: { pause: () => log.push('pause'), resume: () => log.push('resume') },
      handle: (text) => {
        log.push(text);
        return new Promise((resolve) => release.push(resolve));
      },
      flooded: () => log.push('flooded'),
      now: () => now,
    });
  });
  const settle = () => new Promise((resolve) => setImmediate(resolve));

  it('handles one message at a time and pauses reading meanwhile', async () => {
    inbox.take('a');
    inbox.take('b');
    await settle();
    expect(log).to.deep.equal(['pause', 'a']);
    release[0]!();
    await settle();
    expect(log).to.deep.equal(['pause', 'a', 'b']);
    release[1]!();
    await settle();
    expect(log).to.deep.equal(['pause', 'a', 'b', 'resume']);
  });

  it('accepts a burst of 500 messages and 50 per second, large ones counting as several', () => {
    for (let count = 0; count < 500; count += 1) expect(inbox.count(10)).to.equal(true);
    now += 1000;
    expect(inbox.count(50 * 1024)).to.equal(true);
    now += 10;
    inbox.take('too much');
    expect(log).to.deep.equal(['flooded']);
    now += 60_000;
    inbox.take('late');
    expect(log).to.deep.equal(['flooded']);
  });

  it('drops waiting messages when it is closed', async () => {
    inbox.take('a');
    inbox.take('b');
    inbox.close();
    release[0]!();
    await settle();
    expect(log).to.deep.equal(['pause', 'a']);
  });
});
