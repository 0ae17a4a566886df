// Where a device keeps the state of its slots and their images.
import type { AssignedPackage } from '../messages.ts';
import type { ImageDigest } from './image-check.ts';
import type { Slot, SlotState } from './slots.ts';

/** Keeps the state and the images. What a call has changed is durable when it resolves. */
export interface SlotStore {
  readonly state: SlotState;
  save(state: SlotState): Promise<void>;
  /**
   * Prepares a slot for the image of a package, and returns how many bytes of that image it holds already, from an
   * earlier attempt.
   */
  begin(slot: Slot, assigned: AssignedPackage): Promise<number>;
  append(slot: Slot, bytes: Uint8Array): Promise<void>;
  /** Returns size and checksum of the image in a slot. */
  digest(slot: Slot): Promise<ImageDigest>;
  discard(slot: Slot): Promise<void>;
  /** Returns the reason for refusing an image, or undefined. */
  refuse(digest: ImageDigest, assigned: AssignedPackage): string | undefined;
}
