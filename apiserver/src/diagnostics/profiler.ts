// Takes CPU profiles and heap snapshots of this process, one at a time.
import type { ServerResponse } from 'node:http';
import type { Profiler as InspectorProfiler } from 'node:inspector';
import { Session } from 'node:inspector/promises';
import { pipeline } from 'node:stream/promises';
import { getHeapSnapshot } from 'node:v8';
import { sleep } from '../platform/clock.ts';
import { KelletError } from '../platform/errors.ts';

/** Takes profiles. Each costs time and memory, so only one is taken at a time. */
export class Profiler {
  private isBusy = false;

  /**
   * Returns a CPU profile of some seconds, or of fewer if the signal aborts. Calls `started` first. Throws ABORTED while
   * another profile is taken.
   */
  cpu(seconds: number, signal: AbortSignal, started: () => void): Promise<InspectorProfiler.Profile> {
    return this.alone(async () => {
      started();
      const session = new Session();
      session.connect();
      try {
        await session.post('Profiler.enable');
        await session.post('Profiler.start');
        await sleep(seconds * 1000, signal);
        const { profile } = await session.post('Profiler.stop');
        return profile;
      } finally {
        session.disconnect();
      }
    });
  }

  /**
   * Writes a heap snapshot as a response, as fast as the client reads it. The process does nothing else while V8 takes it.
   * Calls `started` first. Throws ABORTED while another profile is taken.
   */
  heap(response: ServerResponse, started: () => void): Promise<void> {
    return this.alone(async () => {
      started();
      // Unlike the chunks of an inspector session, this stream waits for its reader: a snapshot is as large as the heap.
      const snapshot = getHeapSnapshot();
      response.setHeader('content-type', 'application/json');
      response.setHeader('content-disposition', 'attachment; filename="kellet.heapsnapshot"');
      // A client that has disconnected is not a failure.
      await pipeline(snapshot, response).catch((error: unknown) => {
        if (!response.destroyed) throw error;
      });
    });
  }

  private async alone<T>(work: () => Promise<T>): Promise<T> {
    if (this.isBusy) throw new KelletError('ABORTED', 'another profile is being taken');
    this.isBusy = true;
    try {
      return await work();
    } finally {
      this.isBusy = false;
    }
  }
}
