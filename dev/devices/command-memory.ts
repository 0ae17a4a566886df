// What a device remembers of the commands it was given, so that one that arrives twice is carried out once.

/** How a command was answered; undefined while it is carried out, or when its answer is not a response (an update's report). */
export interface Response {
  success: boolean;
  response?: Record<string, unknown>;
  error?: string;
}

/** Remembers the last commands by their correlation ids. Bounded, because a device's memory is. */
export class CommandMemory {
  readonly #most: number;
  readonly #responses = new Map<string, Response | undefined>();

  /** `most` must exceed the number of commands that can be open for the device at a time. */
  constructor(most = 256) {
    this.#most = most;
  }

  /**
   * Returns `new` for a command that was not given before: carry it out. Otherwise `repeat`, with the response that was given
   * to it: send that again, or nothing when there is none.
   */
  begin(correlationId: string): { kind: 'new' } | { kind: 'repeat'; response: Response | undefined } {
    if (this.#responses.has(correlationId)) return { kind: 'repeat', response: this.#responses.get(correlationId) };
    this.#responses.set(correlationId, undefined);
    if (this.#responses.size > this.#most) {
      const [oldest] = this.#responses.keys();
      this.#responses.delete(oldest!);
    }
    return { kind: 'new' };
  }

  /** Keeps the response, for repeats. Call it before sending the response, which may be lost. */
  responded(correlationId: string, response: Response): void {
    if (this.#responses.has(correlationId)) this.#responses.set(correlationId, response);
  }

  /** Forgets a command that could not be carried out and left no trace: a repeat is another chance. */
  forget(correlationId: string): void {
    this.#responses.delete(correlationId);
  }
}
