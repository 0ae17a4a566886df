// The limits of a device's tags. Pure.
import { invalidArgument } from '../../platform/errors.ts';
import { textMapField } from '../../platform/requests/fields.ts';

/** Tags of a device. */
export const maximumTags = 64;

/** Bytes of all of its tags, as JSON: pages show them twice, and each request of points reads those of its devices. */
export const maximumTagBytes = 16_384;

/** Returns the bytes of tags. */
export const tagBytes = (tags: Readonly<Record<string, string>>): number => Buffer.byteLength(JSON.stringify(tags));

/** Throws INVALID_ARGUMENT for tags that a device cannot have. */
export function checkTags(tags: Readonly<Record<string, string>>): void {
  textMapField('tags', tags, maximumTags);
  if (tagBytes(tags) > maximumTagBytes) {
    throw invalidArgument(`tags must have at most ${maximumTagBytes} bytes together`);
  }
}
