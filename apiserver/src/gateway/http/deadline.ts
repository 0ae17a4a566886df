// How long a REST client waits: the header `grpc-timeout`, as gRPC over HTTP/2 writes it.
import { invalidArgument, KelletError } from '../../platform/errors.ts';

const unitMilliseconds: Readonly<Record<string, number>> = {
  H: 3_600_000,
  M: 60_000,
  S: 1000,
  m: 1,
  u: 0.001,
  n: 0.000_001,
};

/** A timer cannot wait longer. */
const mostMilliseconds = 2 ** 31 - 1;

/** What a header that is none is told. */
export const timeoutForm = 'grpc-timeout must be one to eight digits and a unit of H, M, S, m, u, n';

/** The milliseconds of a timeout: one to eight digits and a unit. Throws INVALID_ARGUMENT. */
export function timeoutMilliseconds(header: string): number {
  const [, digits, unit] = /^(\d{1,8})([HMSmun])$/.exec(header) ?? [];
  if (digits === undefined) throw invalidArgument(timeoutForm);
  return Number(digits) * unitMilliseconds[unit!]!;
}

/** Runs a call until the deadline (milliseconds since 1970); then `abort` is called and DEADLINE_EXCEEDED thrown. */
export async function withinDeadline<T>(deadline: number, abort: () => void, call: () => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const passed = new Promise<never>((_resolve, reject) => {
    const milliseconds = deadline - Date.now();
    if (milliseconds > mostMilliseconds) return;
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
