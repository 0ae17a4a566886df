import { ApiError } from '@kellet/client';
import { expect } from 'chai';
import { failureOf, isSignInNeeded } from './failure.ts';

const apiError = (status: number, body: object, headers: Record<string, string> = {}): ApiError =>
  new ApiError(
    new Request('https://api.test/api/v1/ota/rollouts/1/pause', { method: 'POST' }),
    new Response(null, { status, headers }),
    body,
  );

describe('a failure', () => {
  it('is the message of the API with the id of the request', () => {
    const error = apiError(409, {
      code: 'FAILED_PRECONDITION',
      message: 'the rollout is completed',
      request_id: 'r-1',
    });
    expect(failureOf(error)).to.deep.equal({ message: 'The rollout is completed.', requestId: 'r-1' });
  });

  it('says how long to wait', () => {
    const error = apiError(429, { code: 429, message: 'rate limit exceeded', request_id: 'r' }, { 'retry-after': '7' });
    expect(failureOf(error).message).to.equal('Rate limit exceeded. Try again in 7 s.');
  });

  it('of the network is described in words', async () => {
    const thrown: unknown = await fetch('http://127.0.0.1:1/').catch((error: unknown) => error);
    expect(failureOf(thrown).message).to.equal('The API cannot be reached. Check the network, then try again.');
  });

  it('of the application has the message of its error', () => {
    expect(failureOf(new Error('the parameters are not JSON')).message).to.equal('The parameters are not JSON.');
    expect(failureOf('x')).to.deep.equal({ message: 'X.', requestId: '' });
  });

  it('needs a sign-in if it is a 401 of the API', () => {
    expect(isSignInNeeded(apiError(401, {}))).to.equal(true);
    expect(isSignInNeeded(apiError(403, {}))).to.equal(false);
    expect(isSignInNeeded(new Error('401'))).to.equal(false);
  });
});
