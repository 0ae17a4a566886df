// The two slots for images, as a state machine: what is installed, what runs on trial, and which result waits to be
// reported. Pure; the state is written to disk before anything follows from it.
import type { AssignedPackage, OtaReport } from '../messages.ts';

export type Slot = 'a' | 'b';

/** An installed image. */
export interface Image {
  /** Empty for the image that the device came with. */
  readonly package_id: string;
  readonly rollout_id: string;
  readonly version: string;
}

/** A result that the platform has not acknowledged yet. */
export type Result = Required<Omit<OtaReport, 'progress_percent'>>;

/** The state of the slots. */
export interface SlotState {
  /** The slot of the image that has proven healthy. */
  readonly active: Slot;
  readonly images: Readonly<Partial<Record<Slot, Image>>>;
  /** Set while the image in the other slot is on trial, with the number of times it was started. */
  readonly trial?: { readonly starts: number };
  readonly result?: Result;
}

export const otherSlot = (slot: Slot): Slot => (slot === 'a' ? 'b' : 'a');

/** Returns the state of a device as it comes from the factory. */
export const factoryState = (version: string): SlotState => ({
  active: 'a',
  images: { a: { package_id: '', rollout_id: '', version } },
});

/** Returns the version that runs unless a trial does. */
export const activeVersion = ({ active, images }: SlotState): string => images[active]?.version ?? '';

/** What a device does when a package is assigned to it. */
export type UpdatePlan = 'download' | 'report success' | 'wait for the trial';

/**
 * Decides what is left to do for a package, which may be assigned repeatedly. A trial comes to its end first, because
 * its image runs from the slot that another update would overwrite.
 */
export function planUpdate({ active, images, trial }: SlotState, packageId: string): UpdatePlan {
  if (trial) return 'wait for the trial';
  return images[active]?.package_id === packageId ? 'report success' : 'download';
}

/** Returns the state when the other slot is about to be overwritten. */
export function emptied(state: SlotState): SlotState {
  return { ...state, images: { [state.active]: state.images[state.active] } };
}

/** Returns the state when the verified image of a package is in the other slot, to be started next. */
export function installed(state: SlotState, { package_id, rollout_id, version }: AssignedPackage): SlotState {
  const images = { ...state.images, [otherSlot(state.active)]: { package_id, rollout_id, version } };
  return { ...state, images, trial: { starts: 0 } };
}

/** Decides which slot runs when the device starts. A trial that was started too often without success is over. */
export function started(state: SlotState, maximumStarts: number): { state: SlotState; slot: Slot } {
  if (!state.trial) return { state, slot: state.active };
  if (state.trial.starts >= maximumStarts) {
    const over = rolledBack(state, `not confirmed healthy after ${maximumStarts} starts`);
    return { state: over, slot: over.active };
  }
  return { state: { ...state, trial: { starts: state.trial.starts + 1 } }, slot: otherSlot(state.active) };
}

/** Returns the state when the image on trial is healthy. */
export function confirmed(state: SlotState): SlotState {
  const { trial, ...rest } = state;
  const active = otherSlot(state.active);
  const image = state.images[active];
  return trial && image ? { ...rest, active, result: successOf(image) } : state;
}

/** Returns the state when the image on trial is not healthy: the one before it runs again. */
export function rolledBack(state: SlotState, error: string): SlotState {
  const { trial, ...rest } = state;
  const image = state.images[otherSlot(state.active)];
  return trial && image ? { ...rest, result: failureOf(state, image.rollout_id, error) } : state;
}

/** Returns the state when the package cannot be installed. */
export function refused(state: SlotState, { rollout_id }: AssignedPackage, error: string): SlotState {
  return { ...state, result: failureOf(state, rollout_id, error) };
}

/** Returns the state when the package runs already. */
export function alreadyRuns(state: SlotState, { rollout_id }: AssignedPackage): SlotState {
  return { ...state, result: { ...successOf(state.images[state.active]!), rollout_id } };
}

/** Returns the state when the platform has acknowledged the result. */
export function reported({ result: _result, ...state }: SlotState): SlotState {
  return state;
}

const successOf = ({ rollout_id, version }: Image): Result => ({
  ...{ rollout_id, status: 'success', firmware_version: version, error: '' },
});

const failureOf = (state: SlotState, rollout_id: string, error: string): Result => ({
  ...{ rollout_id, status: 'failure', firmware_version: activeVersion(state), error },
});
