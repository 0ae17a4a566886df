// Timeouts of REST calls, from the header `grpc-timeout` as in gRPC over HTTP/2.
import { invalidArgument, KelletError } from '../../platform/errors.ts';

const unitMilliseconds: Readonly<Record<string, number>> = {
  H: 3_600_000,
  M: 60_000,
  S: 1000,
  m: 1,
  u: 0.001,
  n: 0.000_001,
};

/** Maximum delay of a timer. */
const maxMilliseconds = 2 ** 31 - 1;

/** Message for malformed headers. */
export const timeoutForm = 'grpc-timeout must be one to eight digits and a unit of H, M, S, m, u, n';

/** Parses a timeout, one to eight digits and a unit, into milliseconds. Throws INVALID_ARGUMENT. */
export function timeoutMilliseconds(header: string): number {
  const [, digits, unit] = /^(\d{1,8})([HMSmun])$/.exec(header) ?? [];
  if (digits === undefined) throw invalidArgument(timeoutForm);
  return Number(digits) * unitMilliseconds[unit!]!;
}

/** Runs a call until a deadline in milliseconds since 1970. After it, calls `abort` and throws DEADLINE_EXCEEDED. */
export async function withinDeadline<T>(deadline: number, abort: () => void, call: () => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const passed = new Promise<never>((_resolve, reject) => {
    const milliseconds = deadline - Date.now();
    if (milliseconds > maxMilliseconds) return;
    timer = setTimeout(() => {
      abort();
      reject(new KelletError('DEADLINE_EXCEEDED', 'the deadline has passed'));
    }, milliseconds);
  });
  try {
    return await Promise.race([call(), passed]);
  } finally {
    clearTimeout(timer);
  }
}
