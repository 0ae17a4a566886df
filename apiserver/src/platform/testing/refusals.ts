// For tests: how calls end that are expected to fail.
import { type ErrorCode, KelletError } from '../errors.ts';

/** Returns the error that a call is rejected with; fails if it succeeds. */
export async function refusal(call: Promise<unknown>): Promise<KelletError> {
  const thrown = await call.then(
    () => new Error('the call succeeded'),
    (error: unknown) => error,
  );
  if (!(thrown instanceof KelletError)) throw thrown;
  return thrown;
}

/** Returns the code that a call is rejected with; fails if it succeeds. */
export const codeOf = async (call: Promise<unknown>): Promise<ErrorCode> => (await refusal(call)).code;

/** Returns the code that a call is rejected with, or `OK` if it succeeds. */
export const outcomeOf = (call: Promise<unknown>): Promise<ErrorCode | 'OK'> =>
  call.then(
    () => 'OK',
    (error: unknown) => {
      if (!(error instanceof KelletError)) throw error;
      return error.code;
    },
  );
