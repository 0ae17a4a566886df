import { expect } from 'chai';
import { MemoryBudget } from '../gateway/memory/memory-budget.ts';
import { liveMessages } from './live-message.ts';
import { Feed } from './point-feed.ts';
import { textFrame } from './text-frame.ts';

const frameOf = (point: string): Buffer => textFrame(`{"channel":"telemetry.live","device_id":"a","point":${point}}`);

describe('Feed', () => {
  it('keeps only the latest message of each device while the socket is full', async () => {
    const sent: string[] = [];
    const memory = new MemoryBudget({ total: 2 ** 30, perOwner: 2 ** 30 });
    const socket = { bufferedAmount: 0, sendFrame: (frame: Buffer) => void sent.push(frame.toString()) };
    const feed = new Feed({ socket, memory, tenantId: 'acme', tooSlow: () => expect.fail('not slow enough') });
    feed.push('a', Buffer.from('a1'));
    socket.bufferedAmount = 2 ** 20;
    for (const message of ['a2', 'b1', 'a3', 'b2', 'a4']) feed.push(message[0]!, Buffer.from(message));
    expect(sent).to.deep.equal(['a1']);
    socket.bufferedAmount = 0;
    await new Promise((resolve) => setTimeout(resolve, 120));
    expect(sent).to.deep.equal(['a1', 'b2', 'a4']);
    feed.push('a', Buffer.from('a5'));
    expect(sent.at(-1)).to.equal('a5');
    feed.close();
  });

  it('sends many messages in pieces while the socket has room, and keeps the last one of the others', async () => {
    const sent: Buffer[] = [];
    const memory = new MemoryBudget({ total: 2 ** 30, perOwner: 2 ** 30 });
    const socket = {
      bufferedAmount: 0,
      sendFrame: (frame: Buffer) => {
        sent.push(frame);
        socket.bufferedAmount += frame.length;
      },
    };
    const feed = new Feed({ socket, memory, tenantId: 'acme', tooSlow: () => expect.fail('not slow enough') });
    const points = Array.from({ length: 5000 }, (_, n) => JSON.stringify({ n, text: 'x'.repeat(200) }));
    const messages = liveMessages('a', points, 'device');
    expect(Buffer.concat(messages.pieces).equals(Buffer.concat(points.map((point) => frameOf(point))))).to.equal(true);
    feed.pushAll('a', messages);
    expect(sent.length).to.be.within(4, 5);
    socket.bufferedAmount = 0;
    await new Promise((resolve) => setTimeout(resolve, 120));
    expect(sent.at(-1)).to.deep.equal(frameOf(points.at(-1)!));
    expect(sent.length).to.be.within(5, 6);
    feed.pushAll('a', liveMessages('a', ['{"n":1}'], 'device'));
    expect(sent.at(-1)).to.deep.equal(frameOf('{"n":1}'));
    feed.close();
  });

  it('disconnects the client with the oldest backlog when memory is short', () => {
    const memory = new MemoryBudget({ total: 250_000, perOwner: 200_000 });
    const gone: string[] = [];
    const open = (name: string, tenantId: string) =>
      new Feed({
        socket: { bufferedAmount: 70_000, sendFrame: () => expect.fail('the socket is full') },
        memory,
        tenantId,
        tooSlow: () => gone.push(name),
      });
    const feeds = [open('a', 'acme'), open('b', 'acme'), open('c', 'acme'), open('d', 'other'), open('e', 'third')];
    for (const feed of feeds) feed.push('device', Buffer.from('point'));
    expect(gone).to.deep.equal(['a', 'b']);
    feeds[0]!.push('device', Buffer.from('point'));
    for (const feed of feeds) feed.close();
    expect(memory.bytes).to.equal(0);
  });
});
