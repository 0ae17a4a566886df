// How long a tenant's batches stay open: what its settings and its quota of transactions make of the installation's setting.

/** The longest a tenant can choose. */
export const maximumBatchSeconds = 3600;

/** Returns the seconds after which any tenant's batch is sealed, if its process runs. */
export const longestBatchSeconds = (installationSeconds: number): number =>
  Math.max(installationSeconds, maximumBatchSeconds);

const secondsOfDay = 86_400;

/** The settings of a tenant; 0: none. */
export interface BatchSettings {
  readonly batchSeconds: number;
  readonly anchorsPerDay: number;
}

/**
 * Returns the seconds after which a tenant's batches are sealed, at least those of the installation: as long as it wishes, and
 * so long that its transactions last for the day.
 */
export function batchSecondsFor(installationSeconds: number, { batchSeconds, anchorsPerDay }: BatchSettings): number {
  const spread = anchorsPerDay > 0 ? Math.ceil(secondsOfDay / anchorsPerDay) : 0;
  return Math.max(installationSeconds, Math.min(Math.max(batchSeconds, spread), maximumBatchSeconds));
}
