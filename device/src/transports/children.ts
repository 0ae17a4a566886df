// The children of a gateway that wait for commands on its connection.
import { unavailable } from '../errors.ts';
import type { Command } from '../messages.ts';
import type { Listener } from './transport.ts';

interface Waiting {
  readonly listener: Listener;
  readonly lost: (error: Error) => void;
}

/** Passes the events of one connection on to children. */
export class Children {
  private readonly waiting = new Map<string, Waiting>();
  private isOpen = false;

  /** Whether any child waits. */
  get any(): boolean {
    return this.waiting.size > 0;
  }

  /** Receives the commands of a child until the connection is lost, which throws, or until the signal aborts. */
  listen(deviceId: string, listener: Listener, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return resolve();
      const ended = (settle: () => void): void => {
        signal.removeEventListener('abort', stop);
        if (this.waiting.get(deviceId) === entry) this.waiting.delete(deviceId);
        settle();
      };
      const stop = (): void => ended(resolve);
      const entry = { listener, lost: (error: Error) => ended(() => reject(error)) };
      this.waiting.get(deviceId)?.lost(unavailable('the child is opened again'));
      this.waiting.set(deviceId, entry);
      signal.addEventListener('abort', stop);
      if (this.isOpen) listener.onReady();
    });
  }

  /** The connection is open, and takes the commands of children. */
  opened(): void {
    this.isOpen = true;
    for (const { listener } of [...this.waiting.values()]) listener.onReady();
  }

  /** The connection is lost. */
  lost(error: Error): void {
    this.isOpen = false;
    for (const { lost } of [...this.waiting.values()]) lost(error);
  }

  /** Takes a command to a child. One whose child does not wait is delivered again later. */
  take(deviceId: string, command: Command): void {
    this.waiting.get(deviceId)?.listener.onCommand(command);
  }
}
