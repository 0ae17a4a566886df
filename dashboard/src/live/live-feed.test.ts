import type { LiveMessage } from '@kellet/client';
import { expect } from 'chai';
import { LiveFeed, type LiveSocket, reconnectDelay } from './live-feed.ts';

class TestSocket implements LiveSocket {
  readonly url: string;
  readonly sent: unknown[] = [];
  isClosed = false;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;

  constructor(url: string) {
    this.url = url;
  }
  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }
  close(): void {
    this.isClosed = true;
  }
  receive(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }
}

const device = { channel: 'telemetry.live', device_id: 'd1' } as const;

describe('the live feed', () => {
  let sockets: TestSocket[];
  let waits: { run: () => void; milliseconds: number }[];
  let token: () => Promise<string>;
  let feed: LiveFeed;
  beforeEach(() => {
    sockets = [];
    waits = [];
    token = () => Promise.resolve('t&1');
    feed = new LiveFeed({
      api: 'https://api.test',
      accessToken: () => token(),
      connect: (url) => {
        sockets.push(new TestSocket(url));
        return sockets.at(-1)!;
      },
      later: (run, milliseconds) => {
        waits.push({ run, milliseconds });
        return () => waits.pop();
      },
      random: () => 1,
    });
  });
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  const open = async (): Promise<TestSocket> => {
    await settle();
    const socket = sockets.at(-1)!;
    socket.onopen?.();
    return socket;
  };

  it('connects with the first subscription, and passes messages to their subscribers', async () => {
    const received: [string, LiveMessage][] = [];
    feed.subscribe(device, (message) => received.push(['d1', message]));
    feed.subscribe({ ...device, device_id: 'd2' }, (message) => received.push(['d2', message]));
    feed.subscribe({ channel: 'alarms' }, (message) => received.push(['alarms', message]));
    const socket = await open();
    expect(sockets).to.have.length(1);
    expect(socket.url).to.equal('wss://api.test/ws?token=t%261');
    expect(socket.sent).to.deep.equal([
      { subscribe: 'telemetry.live', device_id: 'd1' },
      { subscribe: 'telemetry.live', device_id: 'd2' },
      { subscribe: 'alarms' },
    ]);
    socket.receive({ channel: 'telemetry.live', device_id: 'd2', point: { timestamp: 'x' } });
    socket.receive({ channel: 'alarms', alarm: {} });
    socket.receive({ error: { code: 'UNIMPLEMENTED', message: 'x' } });
    socket.onmessage?.({ data: 'not JSON' });
    expect(received.map(([who]) => who)).to.deep.equal(['d2', 'alarms']);
  });

  it('subscribes once for several listeners, and unsubscribes with the last of them', async () => {
    const stops = [feed.subscribe(device, () => undefined), feed.subscribe(device, () => undefined)];
    const socket = await open();
    stops.push(feed.subscribe(device, () => undefined));
    expect(socket.sent).to.have.length(1);
    for (const stop of stops) stop();
    expect(socket.sent.slice(1)).to.deep.equal([{ unsubscribe: 'telemetry.live', device_id: 'd1' }]);
  });

  it('is live once the server has confirmed the channel', async () => {
    feed.subscribe({ channel: 'rollouts', rollout_id: 'r' }, () => undefined);
    const states: string[] = [];
    feed.watch(() => states.push(feed.stateOf('rollouts')));
    const socket = await open();
    expect(feed.stateOf('rollouts')).to.equal('off');
    socket.receive({ subscribed: 'rollouts', rollout_id: 'r' });
    expect(feed.stateOf('rollouts')).to.equal('live');
    expect(feed.stateOf('alarms')).to.equal('off');
    expect(states.at(-1)).to.equal('live');
  });

  it('reconnects with a new token and its subscriptions, after growing delays', async () => {
    feed.subscribe(device, () => undefined);
    (await open()).onclose?.({ code: 1006 });
    expect(feed.stateOf('telemetry.live')).to.equal('waiting');
    token = () => Promise.resolve('t2');
    waits[0]!.run();
    const second = await open();
    expect(second.url).to.match(/token=t2$/);
    expect(second.sent).to.deep.equal([{ subscribe: 'telemetry.live', device_id: 'd1' }]);
    second.onclose?.({ code: 4401 });
    expect(waits[1]!.milliseconds).to.be.greaterThan(waits[0]!.milliseconds);
    waits[1]!.run();
    const third = await open();
    third.receive({ subscribed: 'telemetry.live' });
    third.onclose?.({ code: 1001 });
    expect(waits[2]!.milliseconds).to.equal(waits[0]!.milliseconds);
  });

  it('waits while no token is available', async () => {
    token = () => Promise.reject(new Error('offline'));
    feed.subscribe(device, () => undefined);
    await settle();
    expect(sockets).to.have.length(0);
    expect(feed.stateOf('telemetry.live')).to.equal('waiting');
  });

  it('does not reconnect when it was refused or closed, or when nothing is watched any more', async () => {
    feed.subscribe(device, () => undefined);
    (await open()).onclose?.({ code: 4403 });
    expect(feed.stateOf('telemetry.live')).to.equal('refused');
    expect(waits).to.have.length(0);

    const stop = feed.subscribe(device, () => undefined);
    stop();
    feed.close();
    feed.subscribe(device, () => undefined);
    await settle();
    expect(sockets).to.have.length(1);
  });

  it('spreads the reconnections of many clients over at most half a minute', () => {
    expect(reconnectDelay(1, 0)).to.equal(500);
    expect(reconnectDelay(1, 1)).to.equal(1000);
    for (const attempt of [7, 100, 10_000]) expect(reconnectDelay(attempt, 1)).to.equal(30_000);
  });
});
