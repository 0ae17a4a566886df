// How long devices take for an update, by what those of earlier rollouts took. Pure.

/** What devices of a rollout took for its update. */
export interface UpdateTimes {
  readonly rolloutId: string;
  readonly profileId: string;
  /** From the delivery of the command to the report of success. */
  readonly seconds: readonly number[];
}

/** The time that a plan allows for an update. */
export interface UpdateHistory {
  /** Within which 95 % of the devices finished; 0 without a history. */
  readonly deviceSeconds: number;
  /** The rollouts of which they were, newest first. */
  readonly rolloutIds: readonly string[];
}

/** The share of devices that finish within the time. */
const share = 0.95;

/** Returns what the rollouts, newest first, say about a profile: those of the profile, or all if it has none. */
export function updateHistory(rollouts: readonly UpdateTimes[], profileId: string): UpdateHistory {
  const known = rollouts.filter(({ seconds }) => seconds.length > 0);
  const own = known.filter((rollout) => rollout.profileId === profileId);
  const used = own.length > 0 ? own : known;
  const sorted = used.flatMap(({ seconds }) => seconds).sort((a, b) => a - b);
  const at = sorted[Math.ceil(sorted.length * share) - 1] ?? 0;
  return { deviceSeconds: Math.max(0, Math.ceil(at)), rolloutIds: used.map(({ rolloutId }) => rolloutId) };
}
