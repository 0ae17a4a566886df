import { expect } from 'chai';
import { DeviceError, httpError, reactionTo, statusNames } from './errors.ts';

describe('errors of a device', () => {
  const responses: [number, unknown, string | undefined, string, number | undefined][] = [
    [404, { code: 'NOT_FOUND', message: 'no such device' }, undefined, 'NOT_FOUND', undefined],
    [429, { code: 429, message: 'too many requests' }, '7', 'RESOURCE_EXHAUSTED', 7],
    [503, { code: 'UNAVAILABLE', message: 'starting' }, '1', 'UNAVAILABLE', 1],
    // Responses of intermediaries.
    [404, '<html>', undefined, 'UNAVAILABLE', undefined],
    [401, null, undefined, 'UNAVAILABLE', undefined],
    [502, undefined, 'Wed, 21 Oct 2026 07:28:00 GMT', 'UNAVAILABLE', undefined],
    [413, '<html>', undefined, 'INVALID_ARGUMENT', undefined],
  ];
  for (const [status, body, retryAfter, code, seconds] of responses) {
    it(`have the code ${code} for ${status} ${JSON.stringify(body)}`, () => {
      const error = httpError(status, body, retryAfter);
      expect([error.code, error.retryAfterSeconds]).to.deep.equal([code, seconds]);
    });
  }

  it('are retried, except those that another attempt cannot change', () => {
    const byReaction = Map.groupBy(statusNames.slice(1), (code) => reactionTo(new DeviceError(code, '')));
    expect(Object.fromEntries(byReaction)).to.deep.equal({
      stop: ['UNAUTHENTICATED'],
      wait: ['PERMISSION_DENIED'],
      refused: [
        ...['INVALID_ARGUMENT', 'NOT_FOUND', 'ALREADY_EXISTS', 'FAILED_PRECONDITION', 'OUT_OF_RANGE', 'UNIMPLEMENTED'],
      ],
      retry: [
        ...['CANCELLED', 'UNKNOWN', 'DEADLINE_EXCEEDED', 'RESOURCE_EXHAUSTED', 'ABORTED', 'INTERNAL'],
        ...['UNAVAILABLE', 'DATA_LOSS'],
      ],
    });
    expect(reactionTo(new TypeError('socket closed'))).to.equal('retry');
  });
});
