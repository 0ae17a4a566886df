// For tests: who takes places in turns of the event loop to be decoded.
import { DecodingTurns } from '../memory/decoding-turns.ts';

/** Returns the owners of the messages that took a place, of whatever gateway, while this work lasted. */
export async function ownersOfTurns(work: () => Promise<unknown>): Promise<string[]> {
  const owners: string[] = [];
  const { prototype } = DecodingTurns;
  const enter = Object.getOwnPropertyDescriptor(prototype, 'enter')!;
  const original = enter.value as (owner: string, bytes: number) => Promise<void> | undefined;
  prototype.enter = function (this: DecodingTurns, owner, bytes) {
    owners.push(owner);
    return original.call(this, owner, bytes);
  };
  await work().finally(() => Object.defineProperty(prototype, 'enter', enter));
  return owners;
}
