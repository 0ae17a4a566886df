import { expect } from 'chai';
import { DeviceError, unavailable } from '../errors.ts';
import type { Ingested, Point } from '../messages.ts';
import { MemoryBuffer } from './buffer.ts';
import { nextBatchPoints, type SenderParts, TelemetrySender } from './sender.ts';

const point = (value: number): Point => ({ timestamp: '2026-01-01T00:00:00Z', numeric_values: { value } });
const stored = (points: readonly Point[]): Ingested => ({ accepted: points.length, rejected: 0, errors: [] });

describe('the sender of points', () => {
  const sizes: [number, boolean, number][] = [
    [100, true, 50],
    [3, true, 1],
    [1, true, 1],
    [50, false, 100],
    [80, false, 100],
  ];
  for (const [current, isRefused, expected] of sizes) {
    it(`sends ${expected} points after ${current} were ${isRefused ? 'refused' : 'stored'}`, () =>
      expect(nextBatchPoints(current, isRefused, 100)).to.equal(expected));
  }

  /** Runs a sender over eight points until the buffer is empty. Returns its requests and what it reported. */
  async function run(send: (points: readonly Point[], key: string, attempt: number) => Ingested) {
    const buffer = new MemoryBuffer();
    for (let value = 0; value < 8; value++) buffer.add(point(value));
    const requests: [string, number[]][] = [];
    const rejected: (number | undefined)[] = [];
    const errors: unknown[] = [];
    const stop = new AbortController();
    const parts: SenderParts = {
      ...{ buffer, batchPoints: 8, backoff: { firstMilliseconds: 1, longestMilliseconds: 1 } },
      send: async (points, key) => {
        requests.push([key, points.map(({ numeric_values }) => numeric_values!['value']!)]);
        return send(points, key, requests.length);
      },
      onRejected: (_error, which) => {
        rejected.push(which?.numeric_values?.['value']);
        throw new Error('a faulty program');
      },
      onError: (error) => errors.push(error),
    };
    const sender = new TelemetrySender(parts);
    const running = sender.run(stop.signal);
    const flushed = sender.flush().then(() => stop.abort());
    await Promise.race([running, flushed]);
    return { requests, rejected, errors, left: buffer.size };
  }

  it('repeats a request, with its key, until it is acknowledged', async () => {
    const { requests, errors, left } = await run((points, _key, attempt) => {
      if (attempt < 3) throw unavailable('away');
      return stored(points);
    });
    expect(new Set(requests.map(([key]) => key)).size).to.equal(1);
    expect(requests.map(([, values]) => values.length)).to.deep.equal([8, 8, 8]);
    expect([errors.length, left]).to.deep.equal([2, 0]);
  });

  it('finds the point that causes a request to be refused, and discards only that one', async () => {
    const accepted: number[] = [];
    const { rejected, left } = await run((points) => {
      const values = points.map(({ numeric_values }) => numeric_values!['value']!);
      if (values.includes(5)) throw new DeviceError('INVALID_ARGUMENT', 'malformed');
      accepted.push(...values);
      return stored(points);
    });
    expect([rejected, accepted, left]).to.deep.equal([[5], [0, 1, 2, 3, 4, 6, 7], 0]);
  });

  it('reports single rejected points and does not send them again', async () => {
    const errors = [{ index: 2, code: 'INVALID_ARGUMENT', message: 'too old' }];
    const { requests, rejected } = await run(() => ({ accepted: 7, rejected: 1, errors }));
    expect([requests.length, rejected]).to.deep.equal([1, [2]]);
  });

  it('keeps points while a quota is used up', async () => {
    const errors = [{ index: 0, code: 'RESOURCE_EXHAUSTED', message: 'anchors_per_day is used up' }];
    const { requests, rejected, left } = await run((points, _key, attempt) =>
      attempt < 3 ? { accepted: 0, rejected: 8, errors } : stored(points),
    );
    expect([requests.length, rejected, left]).to.deep.equal([3, [], 0]);
    expect(new Set(requests.map(([key]) => key)).size, 'a repeated key would repeat the response').to.equal(3);
  });

  it('ends when its key is no longer valid, and keeps the points', async () => {
    const revoked = new DeviceError('UNAUTHENTICATED', 'revoked');
    const ended = run(() => {
      throw revoked;
    });
    expect(await ended.catch((error: unknown) => error)).to.equal(revoked);
  });
});
