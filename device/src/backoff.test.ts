import { expect } from 'chai';
import { defaultBackoff, insist, pauseMilliseconds } from './backoff.ts';
import { DeviceError, unavailable } from './errors.ts';

describe('pauses between attempts', () => {
  const away = unavailable('away');
  const limited = (retryAfterSeconds: number) => new DeviceError('RESOURCE_EXHAUSTED', '', { retryAfterSeconds });
  const suspended = new DeviceError('PERMISSION_DENIED', 'tenant suspended');
  const cases: [string, number, unknown, number, number][] = [
    ['the first, at its shortest', 1, away, 0, 0],
    ['the first', 1, away, 0.5, 500],
    ['the second', 2, away, 0.5, 1000],
    ['the fourth', 4, away, 0.25, 2000],
    ['the hundredth, which is limited', 100, away, 0.5, 30_000],
    ['a million failures', 1e6, away, 0.5, 30_000],
    ['Retry-After, and a random time on top', 1, limited(7), 0.5, 7500],
    ['a Retry-After of years, which is limited', 1, limited(1e9), 0, 3_600_000],
    ['a suspended tenant', 1, suspended, 0, 30_000],
    ['an error of the program', 1, new TypeError(), 0.5, 500],
  ];
  for (const [what, failures, error, random, expected] of cases) {
    it(what, () => expect(pauseMilliseconds(defaultBackoff, failures, error, random)).to.equal(expected));
  }

  it('end with success, with an error that is final, and with the signal', async () => {
    const backoff = { firstMilliseconds: 1, longestMilliseconds: 2 };
    const stop = new AbortController();
    let attempts = 0;
    const third = async () => {
      if (++attempts < 3) throw away;
      return attempts;
    };
    expect(await insist(third, { backoff, signal: stop.signal })).to.equal(3);
    const refused = new DeviceError('NOT_FOUND', 'gone');
    const final = insist(() => Promise.reject(refused), { backoff, signal: stop.signal });
    expect(await final.catch((error: unknown) => error)).to.equal(refused);
    const onError = () => stop.abort(new Error('stopped'));
    const stopped = insist(() => Promise.reject(away), { backoff, signal: stop.signal, onError });
    expect(await stopped.catch((error: Error) => error.message)).to.equal('stopped');
  });
});
