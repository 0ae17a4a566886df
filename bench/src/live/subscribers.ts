// WebSocket clients in a process of their own, so that their cost is not measured.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

/** What to open. */
export interface SubscriberOptions {
  readonly port: number;
  /** A connection is opened with each. */
  readonly paths: readonly string[];
  /** The message that each sends, which must be confirmed; none if empty. */
  readonly subscribe: string;
}

/** Messages to the process. */
export type SubscriberCommand = SubscriberOptions | 'count';

/** What the process has received. */
export interface Received {
  readonly received: number;
  /** The first message. */
  readonly sample: string;
}

/** Time for messages under way to arrive. */
const patienceMilliseconds = 30_000;

/** The clients of one server. */
export class Subscribers {
  private readonly child: ChildProcess;
  private seen = 0;

  private constructor(child: ChildProcess) {
    this.child = child;
  }

  /** Opens the connections; resolves once all of them are subscribed. */
  static async open(options: SubscriberOptions): Promise<Subscribers> {
    const subscribers = new Subscribers(fork(join(import.meta.dirname, 'subscriber-process.ts')));
    await subscribers.ask<string>(options);
    return subscribers;
  }

  /** Waits until this many messages have been received since the last call. Throws for more, and if they do not arrive. */
  async expect(messages: number): Promise<void> {
    const end = performance.now() + patienceMilliseconds;
    for (;;) {
      const received = (await this.count()).received - this.seen;
      if (received > messages || (received < messages && performance.now() > end)) {
        throw new Error(`${messages} messages were due, but ${received} were delivered`);
      }
      if (received === messages) {
        this.seen += messages;
        return;
      }
      await sleep(20);
    }
  }

  count(): Promise<Received> {
    return this.ask<Received>('count');
  }

  private async ask<Result>(command: SubscriberCommand): Promise<Result> {
    const over = new AbortController();
    const { signal } = over;
    const ended = once(this.child, 'exit', { signal }).then(() => {
      throw new Error('the subscribers have failed');
    });
    ended.catch(() => undefined);
    try {
      this.child.send(command);
      const [response] = (await Promise.race([once(this.child, 'message', { signal }), ended])) as [Result];
      return response;
    } finally {
      over.abort();
    }
  }

  close(): void {
    this.child.disconnect();
  }
}
