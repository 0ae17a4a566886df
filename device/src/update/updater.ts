// Installs the assigned package: downloads it into the spare slot, resuming what is there, verifies it, and leaves it to
// the next start. A trial ends with a confirmation or with the image before it.
import { insist, type Insisting } from '../backoff.ts';
import { DeviceError } from '../errors.ts';
import { type AssignedPackage, chunkBytes, type OtaReport } from '../messages.ts';
import type { Transport } from '../transports/transport.ts';
import type { SlotStore } from './slot-store.ts';
import * as slots from './slots.ts';

/**
 * How an update ended: `installed`, which needs a restart; `reported`, because there is a result without a restart; or
 * `left`, because nothing is assigned any more, a trial has to end first, or an earlier result had to be reported.
 */
export type UpdateOutcome = 'installed' | 'reported' | 'left';

/** Bytes between two reports of progress, of which there are at most a hundred. */
const progressBytes = 512 * 1024;

/** The package is no longer assigned to the device. */
class Withdrawn extends Error {}

/** A download into some place. */
export interface Download {
  readonly transport: Transport;
  readonly assigned: AssignedPackage;
  /** Bytes that are there already. */
  readonly present: number;
  readonly append: (bytes: Uint8Array) => Promise<void>;
  readonly insisting: Insisting;
}

/**
 * Downloads the rest of an artifact, chunk by chunk, through lost connections. Returns false if the package is no longer
 * assigned to the device.
 */
export async function downloadArtifact({ transport, assigned, ...download }: Download): Promise<boolean> {
  const { package_id, rollout_id, size_bytes } = assigned;
  const { signal } = download.insisting;
  let reported = { bytes: download.present, percent: Math.floor((download.present * 100) / size_bytes) };
  for (let offset = download.present; offset < size_bytes;) {
    const length = Math.min(chunkBytes, size_bytes - offset);
    let bytes: Uint8Array;
    try {
      bytes = await insist(async () => {
        const chunk = await transport.chunk(package_id, offset, length, signal).catch(withdrawnOr);
        // An incomplete range comes from an intermediary.
        if (chunk.length !== length) throw new DeviceError('UNAVAILABLE', `${chunk.length} of ${length} bytes`);
        return chunk;
      }, download.insisting);
    } catch (error) {
      if (error instanceof DeviceError && error.cause instanceof Withdrawn) return false;
      throw error;
    }
    await download.append(bytes);
    offset += length;
    const percent = Math.floor((offset * 100) / size_bytes);
    if (offset - reported.bytes >= progressBytes && percent > reported.percent && offset < size_bytes) {
      reported = { bytes: offset, percent };
      const report = { rollout_id, progress_percent: percent };
      // Progress reports are optional.
      await transport.report(report, signal).catch((error: unknown) => download.insisting.onError?.(error));
    }
  }
  return true;
}

function withdrawnOr(error: unknown): never {
  // Another package is assigned by now; its command follows.
  if (error instanceof DeviceError && ['PERMISSION_DENIED', 'NOT_FOUND'].includes(error.code)) {
    throw new DeviceError('FAILED_PRECONDITION', error.message, { cause: new Withdrawn() });
  }
  throw error;
}

/** Updates a device. */
export class Updater {
  private readonly transport: Transport;
  private readonly store: SlotStore;
  private readonly insisting: Insisting;
  private reporting: Promise<void> = Promise.resolve();

  constructor(transport: Transport, store: SlotStore, insisting: Insisting) {
    this.transport = transport;
    this.store = store;
    this.insisting = insisting;
  }

  /** Installs the assigned package. */
  async update(): Promise<UpdateOutcome> {
    const { store, transport, insisting } = this;
    // A command that arrives while a result waits may have been delivered before. The result is then its response:
    // installing the package again would repeat a failed trial forever. A command of another update is delivered again.
    const isReported = async (): Promise<boolean> => {
      if (!store.state.result) return false;
      await this.report();
      return true;
    };
    if (await isReported()) return 'left';
    const assigned = await insist(() => transport.assignedPackage(insisting.signal), insisting);
    if (!assigned || (await isReported())) return 'left';
    const plan = slots.planUpdate(store.state, assigned.package_id);
    if (plan === 'wait for the trial') return 'left';
    if (plan === 'report success') {
      await store.save(slots.alreadyRuns(store.state, assigned));
    } else {
      const spare = slots.otherSlot(store.state.active);
      await store.save(slots.emptied(store.state));
      const present = await store.begin(spare, assigned);
      const append = (bytes: Uint8Array) => store.append(spare, bytes);
      if (!(await downloadArtifact({ transport, assigned, present, append, insisting }))) return 'left';
      const refusal = store.refuse(await store.digest(spare), assigned);
      if (refusal === undefined) {
        await store.save(slots.installed(store.state, assigned));
        return 'installed';
      }
      await store.discard(spare);
      await store.save(slots.refused(store.state, assigned, refusal));
    }
    await this.report();
    return 'reported';
  }

  /** Ends the trial: the image is healthy. */
  async confirm(): Promise<void> {
    await this.store.save(slots.confirmed(this.store.state));
  }

  /** Ends the trial: the image before it runs again after a restart. */
  async rollBack(error: string): Promise<void> {
    await this.store.save(slots.rolledBack(this.store.state, error));
  }

  /** Reports a result that the platform has not acknowledged, also one from before a restart. */
  report(): Promise<void> {
    this.reporting = this.reporting.catch(() => undefined).then(() => this.reportResult());
    return this.reporting;
  }

  private async reportResult(): Promise<void> {
    const { result } = this.store.state;
    if (!result) return;
    const report: OtaReport = result;
    try {
      await insist(() => this.transport.report(report, this.insisting.signal), this.insisting);
    } catch (error) {
      this.insisting.signal.throwIfAborted();
      // The rollout no longer waits for it.
      this.insisting.onError?.(error);
      if (error instanceof DeviceError && error.code === 'UNAUTHENTICATED') throw error;
    }
    if (this.store.state.result === result) await this.store.save(slots.reported(this.store.state));
  }
}
