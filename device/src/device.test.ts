import { expect } from 'chai';
import { Device, type DeviceParts, pointOf, type Values } from './device.ts';
import { DeviceError, unavailable } from './errors.ts';
import type { Attributes, JsonObject, Response } from './messages.ts';
import type { Listener, Transport } from './transports/transport.ts';
import { emptied, factoryState, installed, type SlotState, started } from './update/slots.ts';

/** A platform whose connection the test controls. */
class Platform {
  readonly responses: [string, Response][] = [];
  readonly changes: JsonObject[] = [];
  readonly reports: object[] = [];
  shared: Attributes['shared'] = {};
  listener: Listener | undefined;
  away = false;
  private lose: (error: Error) => void = () => undefined;
  private readonly waiting: (() => void)[] = [];

  readonly transport = {
    listen: (listener: Listener, signal: AbortSignal) =>
      new Promise<void>((resolve, reject) => {
        this.lose = reject;
        signal.addEventListener('abort', () => resolve());
        this.listener = listener;
        for (const done of this.waiting.splice(0)) done();
      }),
    respond: async (id: string, response: Response) => {
      if (this.away) throw unavailable('away');
      this.responses.push([id, response]);
    },
    getAttributes: async () => ({ client: {}, shared: this.shared }),
    setAttributes: async (changes: JsonObject) => {
      if (this.away) throw unavailable('away');
      if ('bad' in changes) throw new DeviceError('INVALID_ARGUMENT', 'bad');
      this.changes.push(changes);
    },
    report: async (report: object) => void this.reports.push(report),
    close: async () => undefined,
  } as unknown as Transport;

  /** Resolves when the device connects the next time. */
  connection(): Promise<void> {
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  end(error: Error): void {
    this.lose(error);
  }
}

const identity = { device_id: 'd-1', api_key: 'k' };
const backoff = { firstMilliseconds: 1, longestMilliseconds: 1 };
const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

describe('a device', () => {
  let platform: Platform;
  let stop: AbortController;
  beforeEach(() => {
    platform = new Platform();
    stop = new AbortController();
  });

  /** Runs a device until its first connection. */
  async function run(parts: Partial<DeviceParts> = {}) {
    const device = new Device({ identity, transport: platform.transport, backoff, ...parts });
    const connected = platform.connection();
    const running = device.run(stop.signal);
    await connected;
    return { device, running };
  }

  const points: [string, Values, object | RegExp][] = [
    ['numbers and strings', { a: 1, b: 'x' }, { numeric_values: { a: 1 }, string_values: { b: 'x' } }],
    ['numbers', { a: -0.5 }, { numeric_values: { a: -0.5 } }],
    ['no values', {}, /at least one value/],
    ['NaN', { a: Number.NaN }, /a is NaN/],
    ['another type', { a: true as unknown as number }, /a is true/],
  ];
  for (const [what, values, expected] of points) {
    it(`makes a point of ${what}, or throws`, () => {
      const time = new Date('2026-01-01T00:00:00Z');
      if (expected instanceof RegExp) expect(() => pointOf(values, time)).to.throw(TypeError, expected);
      else expect(pointOf(values, time)).to.deep.equal({ timestamp: '2026-01-01T00:00:00.000Z', ...expected });
    });
  }

  it('carries out a command once, and repeats its response', async () => {
    let count = 0;
    const { running } = await run({
      onCommand: ({ method }) => {
        if (method === 'fail') throw new Error('no such lamp');
        return { count: ++count };
      },
    });
    const { listener } = platform;
    listener!.onReady();
    for (const correlation_id of ['a', 'b', 'a']) listener!.onCommand({ correlation_id, method: 'blink' });
    listener!.onCommand({ correlation_id: 'c', method: 'fail' });
    listener!.onCommand({ correlation_id: 'd', method: 'ota_start' });
    await settled();
    listener!.onCommand({ correlation_id: 'b', method: 'blink' });
    await settled();
    expect(platform.responses).to.deep.equal([
      ['a', { success: true, response: { count: 1 } }],
      ['b', { success: true, response: { count: 2 } }],
      ['c', { success: false, error: 'no such lamp' }],
      ['d', { success: false, error: 'this device has no updates' }],
      ['b', { success: true, response: { count: 2 } }],
    ]);
    stop.abort();
    expect(await running).to.equal('stopped');
  });

  it('follows shared attributes, also those that changed while it was disconnected', async () => {
    const seen: [JsonObject, readonly string[]][] = [];
    const updated_at = '';
    platform.shared = { a: { value: 1, updated_at }, b: { value: [2], updated_at } };
    const { device, running } = await run({ onAttributes: ({ changed, removed }) => seen.push([changed, removed]) });
    platform.listener!.onReady();
    await settled();
    const params = { changed: { c: 3 }, removed: ['a'] };
    platform.listener!.onCommand({ correlation_id: 'x', method: 'attributes_changed', params });
    await settled();
    expect(device.attributes).to.deep.equal({ b: [2], c: 3 });
    platform.shared = { b: { value: [2], updated_at }, c: { value: 4, updated_at } };
    const again = platform.connection();
    platform.end(unavailable('lost'));
    await again;
    platform.listener!.onReady();
    await settled();
    expect(seen).to.deep.equal([
      [{ a: 1, b: [2] }, []],
      [{ c: 3 }, ['a']],
      [{ c: 4 }, []],
    ]);
    expect(platform.responses).to.deep.equal([['x', { success: true }]]);
    stop.abort();
    await running;
  });

  it('sends attributes that were set while it was disconnected together, and rejects refused ones', async () => {
    const { device, running } = await run();
    const early = [device.setAttributes({ a: 1, b: 1 }), device.setAttributes({ b: 2 })];
    platform.listener!.onReady();
    await Promise.all(early);
    expect(platform.changes).to.deep.equal([{ a: 1, b: 2 }]);
    expect(await device.setAttributes({ bad: 1 }).catch((error: DeviceError) => error.code)).to.equal(
      'INVALID_ARGUMENT',
    );
    platform.away = true;
    const older = device.setAttributes({ a: 3 });
    await settled();
    const newer = device.setAttributes({ a: 4 });
    platform.away = false;
    await Promise.all([older, newer]);
    expect(platform.changes.slice(1)).to.deep.equal([{ a: 3 }, { a: 4 }]);
    stop.abort();
    await running;
  });

  for (const code of ['UNAUTHENTICATED', 'ABORTED']) {
    it(`ends when its connection ends with ${code}`, async () => {
      const { running } = await run();
      platform.listener!.onReady();
      platform.end(new DeviceError(code, 'no more'));
      expect(await running.catch((error: DeviceError) => error.code)).to.equal(code);
    });
  }

  /** Slots in memory with an image on trial. */
  const onTrial = () => {
    const assigned = { package_id: 'p', version: '2', rollout_id: 'r', size_bytes: 1, sha256: '', signature: '' };
    const slots = {
      state: started(installed(emptied(factoryState('1')), assigned), 3).state,
      save: async (state: SlotState) => void (slots.state = state),
    };
    return slots;
  };
  const trials: [string, Partial<DeviceParts>, boolean, string, object | undefined][] = [
    ['confirms an image that is healthy', {}, true, 'stopped', { status: 'success', firmware_version: '2' }],
    [
      'rolls back an image that is not healthy',
      { checkHealth: () => Promise.reject(new Error('no sensor')) },
      ...([true, 'restart', { status: 'failure', error: 'no sensor' }] as const),
    ],
    [
      'rolls back an image whose health check does not end',
      { checkHealth: () => new Promise(() => undefined), confirmSeconds: 0.3 },
      ...([true, 'restart', { error: 'the health check did not end in time' }] as const),
    ],
    [
      'rolls back an image that does not reach the platform',
      { confirmSeconds: 0.3 },
      ...([false, 'restart', { error: 'the platform was not reached in time' }] as const),
    ],
  ];
  for (const [what, parts, isReached, end, result] of trials) {
    it(what, async () => {
      const slots = onTrial();
      const { running } = await run({ slots: slots as unknown as NonNullable<DeviceParts['slots']>, ...parts });
      if (isReached) platform.listener!.onReady();
      if (end === 'stopped') {
        while (platform.reports.length === 0) await settled();
        expect(platform.reports[0]).to.include(result);
        stop.abort();
      }
      expect(await running).to.equal(end);
      if (end === 'restart') expect(slots.state.result).to.include(result);
      expect(slots.state.trial).to.equal(undefined);
    });
  }

  it('stops at once if its signal has aborted before', async () => {
    stop.abort();
    const device = new Device({ identity, transport: platform.transport });
    expect(await device.run(stop.signal)).to.equal('stopped');
    await device.close();
  });
});
