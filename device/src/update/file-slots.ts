// The slots of a device in a folder: `slots.json` with the state, and an image per slot.
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import { open } from 'node:fs/promises';
import path from 'node:path';
import type { AssignedPackage } from '../messages.ts';
import { writeAtomically } from '../write-atomically.ts';
import { type ImageDigest, refuseImage } from './image-check.ts';
import type { SlotStore } from './slot-store.ts';
import { factoryState, type Slot, type SlotState, started } from './slots.ts';

/** Settings of slots on disk. */
export interface FileSlotsOptions {
  /** The version that the device comes with. */
  factoryVersion: string;
  /** PEM of the keys that images may be signed with. Without any, signatures are not checked. */
  signingKeys?: readonly string[];
}

/** Slots in a folder that no other process writes. */
export class FileSlots implements SlotStore {
  private readonly folder: string;
  private readonly signingKeys: readonly string[];
  private current: SlotState;

  constructor(folder: string, { factoryVersion, signingKeys = [] }: FileSlotsOptions) {
    this.folder = folder;
    this.signingKeys = signingKeys;
    fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
    this.current = readState(folder) ?? factoryState(factoryVersion);
  }

  get state(): SlotState {
    return this.current;
  }

  save(state: SlotState): Promise<void> {
    writeAtomically(path.join(this.folder, 'slots.json'), `${JSON.stringify(state)}\n`);
    this.current = state;
    return Promise.resolve();
  }

  begin(slot: Slot, { package_id, sha256 }: AssignedPackage): Promise<number> {
    const marker = path.join(this.folder, `slot-${slot}.package`);
    const content = `${package_id} ${sha256}\n`;
    const image = imagePath(this.folder, slot);
    if (read(marker) !== content) {
      // In this order, so that a marker never belongs to the bytes of another package.
      fs.rmSync(marker, { force: true });
      fs.writeFileSync(image, '', { mode: 0o600 });
      writeAtomically(marker, content);
    }
    return Promise.resolve(fs.existsSync(image) ? fs.statSync(image).size : 0);
  }

  append(slot: Slot, bytes: Uint8Array): Promise<void> {
    fs.appendFileSync(imagePath(this.folder, slot), bytes, { mode: 0o600 });
    return Promise.resolve();
  }

  async digest(slot: Slot): Promise<ImageDigest> {
    const file = await open(imagePath(this.folder, slot), 'r+');
    try {
      await file.sync();
      const hash = createHash('sha256');
      let sizeBytes = 0;
      for await (const part of file.createReadStream({ autoClose: false }) as AsyncIterable<Buffer>) {
        hash.update(part);
        sizeBytes += part.length;
      }
      return { sizeBytes, sha256: hash.digest() };
    } finally {
      await file.close();
    }
  }

  discard(slot: Slot): Promise<void> {
    fs.rmSync(path.join(this.folder, `slot-${slot}.package`), { force: true });
    fs.rmSync(imagePath(this.folder, slot), { force: true });
    return Promise.resolve();
  }

  refuse(digest: ImageDigest, assigned: AssignedPackage): string | undefined {
    return refuseImage(digest, assigned, this.signingKeys);
  }
}

/**
 * To be called by the program that starts a device's image. Returns the path of the image to run, or undefined for the
 * one that the device came with. An image on trial is started at most so many times; then the one before it runs again.
 */
export function startImage(folder: string, maximumStarts = 3): string | undefined {
  const state = readState(folder);
  if (!state) return undefined;
  const { state: next, slot } = started(state, maximumStarts);
  if (next !== state) writeAtomically(path.join(folder, 'slots.json'), `${JSON.stringify(next)}\n`);
  return next.images[slot]?.package_id ? imagePath(folder, slot) : undefined;
}

const imagePath = (folder: string, slot: Slot): string => path.join(folder, `slot-${slot}.image`);

function read(file: string): string | undefined {
  try {
    return fs.readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as { code?: string }).code === 'ENOENT') return undefined;
    throw error;
  }
}

/**
 * Returns the state, or undefined if it cannot be read. The device then starts anyway, because otherwise it could not be
 * repaired.
 */
function readState(folder: string): SlotState | undefined {
  try {
    const state = JSON.parse(read(path.join(folder, 'slots.json')) ?? '') as SlotState;
    return state.images[state.active] ? state : undefined;
  } catch {
    return undefined;
  }
}
