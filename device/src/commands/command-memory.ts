// Deduplicates commands on a device, so that a duplicate is not executed again.
import type { Response } from '../messages.ts';

/** Stores the latest commands by correlation id, limited in number. */
export class CommandMemory {
  private readonly limit: number;
  /** Undefined while the command is carried out, or if it has no response (an update is reported instead). */
  private readonly responses = new Map<string, Response | undefined>();

  /** `limit` must exceed the number of commands that can be open for the device at a time. */
  constructor(limit = 256) {
    this.limit = limit;
  }

  /**
   * Returns `new` for a new command, which must be executed. Otherwise returns `repeat` with the earlier response,
   * which must be sent again if there is one.
   */
  begin(correlationId: string): { kind: 'new' } | { kind: 'repeat'; response: Response | undefined } {
    if (this.responses.has(correlationId)) return { kind: 'repeat', response: this.responses.get(correlationId) };
    this.responses.set(correlationId, undefined);
    if (this.responses.size > this.limit) {
      const [oldest] = this.responses.keys();
      this.responses.delete(oldest!);
    }
    return { kind: 'new' };
  }

  /** Stores the response for duplicates. Must be called before sending the response, which may be lost. */
  responded(correlationId: string, response: Response): void {
    if (this.responses.has(correlationId)) this.responses.set(correlationId, response);
  }

  /** Removes a command that failed without effect, so that a duplicate is executed. */
  forget(correlationId: string): void {
    this.responses.delete(correlationId);
  }
}
