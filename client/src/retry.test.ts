import { expect } from 'chai';
import { defaultRetryPolicy, retryDelay } from './retry.ts';

describe('retryDelay', () => {
  const cases: [
    what: string,
    request: RequestInit,
    status: number,
    after: string | undefined,
    attempt: number,
    delay: number | undefined,
  ][] = [
    ['a rate limit, as its Retry-After says', { method: 'POST' }, 429, '7', 1, 7],
    ['a rate limit that resets too late', { method: 'GET' }, 429, '300', 1, undefined],
    ['a quota', { method: 'POST' }, 429, undefined, 1, undefined],
    ['a read while the server is unavailable', { method: 'GET' }, 503, '1', 1, 1],
    ['a read, longer each time', { method: 'GET' }, 503, undefined, 3, 0.8],
    ['a write while the server is unavailable', { method: 'POST' }, 503, '1', 1, undefined],
    ['a write with a key', { method: 'POST', headers: { 'idempotency-key': 'k' } }, 503, '1', 1, 1],
    ['an update', { method: 'PATCH' }, 503, '1', 1, undefined],
    ['a deletion', { method: 'DELETE' }, 503, '1', 1, 1],
    ['the last attempt', { method: 'GET' }, 503, '1', 4, undefined],
    ['an internal error', { method: 'GET' }, 500, undefined, 1, undefined],
    ['a client error', { method: 'GET' }, 404, undefined, 1, undefined],
  ];
  for (const [what, init, status, after, attempt, delay] of cases) {
    it(`${delay === undefined ? 'gives up' : 'waits'}: ${what}`, () => {
      const response = new Response(null, { status, headers: after === undefined ? {} : { 'retry-after': after } });
      const request = new Request('http://localhost/', init);
      expect(retryDelay(request, response, attempt, defaultRetryPolicy, 0)).to.equal(delay);
    });
  }
});
