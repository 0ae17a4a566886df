import { expect } from 'chai';
import type { Command } from '../messages.ts';
import { Children } from './children.ts';

describe('the children of a gateway', () => {
  const command = { correlation_id: 'c', method: 'look' };
  /** A child that waits, and what happens to it. */
  const waiting = (children: Children, deviceId: string) => {
    const stop = new AbortController();
    const events: string[] = [];
    const listener = {
      onReady: () => void events.push('ready'),
      onCommand: ({ method }: Command) => void events.push(method),
    };
    const ended = children.listen(deviceId, listener, stop.signal).then(
      () => 'stopped',
      (error: Error) => error.message,
    );
    return { events, ended, stop };
  };

  it('are ready with the connection, and get their own commands alone', async () => {
    const children = new Children();
    const one = waiting(children, 'one');
    expect([children.any, one.events]).to.deep.equal([true, []]);
    children.opened();
    const two = waiting(children, 'two');
    children.take('two', command);
    children.take('unknown', command);
    expect([one.events, two.events]).to.deep.equal([['ready'], ['ready', 'look']]);
    one.stop.abort();
    expect(await one.ended).to.equal('stopped');
    children.take('one', command);
    expect(one.events).to.deep.equal(['ready']);
  });

  it('end with the connection, and wait for the next one', async () => {
    const children = new Children();
    children.opened();
    const first = waiting(children, 'one');
    children.lost(new Error('lost'));
    expect(await first.ended).to.equal('lost');
    expect(children.any).to.equal(false);
    const second = waiting(children, 'one');
    expect(second.events).to.deep.equal([]);
    children.opened();
    expect(second.events).to.deep.equal(['ready']);
    second.stop.abort();
    expect(await second.ended).to.equal('stopped');
  });

  it('are replaced when they are opened again', async () => {
    const children = new Children();
    const first = waiting(children, 'one');
    const second = waiting(children, 'one');
    expect(await first.ended).to.equal('the child is opened again');
    children.opened();
    children.take('one', command);
    expect(second.events).to.deep.equal(['ready', 'look']);
    second.stop.abort();
    expect(await second.ended).to.equal('stopped');
  });
});
