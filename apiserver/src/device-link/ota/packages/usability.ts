// Decides whether a package may be given to devices that it was not given to before. Pure.
import type { PackageRow } from './package-store.ts';

/** Why a package cannot be used, with the code for a caller of the API. */
export interface Unusable {
  readonly code: 'INVALID_ARGUMENT' | 'FAILED_PRECONDITION';
  readonly message: string;
}

/** Returns why a rollout or an assignment of the package is refused, or undefined. */
export function unusable({ status, deletion_pending: isLeaving }: PackageRow): Unusable | undefined {
  if (status === 'rejected') return { code: 'INVALID_ARGUMENT', message: 'the package is rejected' };
  if (isLeaving) return { code: 'FAILED_PRECONDITION', message: 'the package is being deleted' };
  if (status === 'available') return undefined;
  return { code: 'FAILED_PRECONDITION', message: `the package is ${status}, not available` };
}
