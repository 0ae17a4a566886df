// The client of the data plane's control service: calls with a deadline, and the stream of what changed there.
import { once } from 'node:events';
import { credentials, Metadata, status, type ClientReadableStream, type ServiceError } from '@grpc/grpc-js';
import {
  ControlServiceClient,
  type AdvanceRolloutRequest,
  type AdvanceRolloutResponse,
  type ApplyRequest,
  type ApplyResponse,
  type RemoveRequest,
  type RemoveResponse,
  type ListWorkingCopiesResponse,
  type WatchResponse,
  type WorkingCopy,
} from '@kellet/proto/ts/kellet/control/v1/control';
import { Backoff } from './runtime/backoff.ts';
import { sleep, type Clock } from './runtime/clock.ts';
import type { Logger } from './runtime/logger.ts';

/** What the operator asks of the data plane. Every call may be repeated; an error means "try again". */
export interface DataPlane {
  apply(request: ApplyRequest): Promise<ApplyResponse>;
  remove(request: RemoveRequest): Promise<RemoveResponse>;
  advanceRollout(request: AdvanceRolloutRequest): Promise<AdvanceRolloutResponse>;
}

/** Whether an Apply failed because a newer version of the resource had been applied: the cache is behind and will show it. */
export const isOvertaken = (error: unknown): boolean => (error as Partial<ServiceError>).code === status.ABORTED;

/** How soon a resource whose copy was behind is looked at again; a change that the watch shows comes first. */
export const overtakenRetryMs = 1000;

/** Told what the stream of changes says. */
export interface ChangeListener {
  /** The stream is live, for the first time or again: what changed meanwhile is not known. */
  onSynced: () => void;
  onChange: (change: WatchResponse) => void;
}

/** How the data plane is reached. */
export interface DataPlaneOptions {
  /** host:port. */
  address: string;
  secret: string;
  clock: Clock;
  logger: Logger;
  /** Milliseconds until a call must have been answered (30 s). */
  deadlineMs?: number;
}

type Callback<R> = (error: ServiceError | null, response: R) => void;

/** The client over gRPC. It reconnects by itself; while the data plane is away calls fail at once. */
export class ControlClient implements DataPlane {
  readonly #options: Required<DataPlaneOptions>;
  readonly #client: ControlServiceClient;
  readonly #metadata = new Metadata();
  #live = false;
  #failure = 'not connected yet';

  constructor(options: DataPlaneOptions) {
    this.#options = { deadlineMs: 30_000, ...options };
    this.#metadata.set('authorization', `Bearer ${options.secret}`);
    this.#client = new ControlServiceClient(options.address, credentials.createInsecure(), {
      // A connection whose other end has vanished is noticed after 25 s at the latest.
      'grpc.keepalive_time_ms': 20_000,
      'grpc.keepalive_timeout_ms': 5000,
      'grpc.keepalive_permit_without_calls': 1,
      'grpc.initial_reconnect_backoff_ms': 200,
      'grpc.max_reconnect_backoff_ms': 5000,
    });
  }

  apply(request: ApplyRequest): Promise<ApplyResponse> {
    return this.#call((options, done) => this.#client.apply(request, this.#metadata, options, done));
  }

  remove(request: RemoveRequest): Promise<RemoveResponse> {
    return this.#call((options, done) => this.#client.remove(request, this.#metadata, options, done));
  }

  advanceRollout(request: AdvanceRolloutRequest): Promise<AdvanceRolloutResponse> {
    return this.#call((options, done) => this.#client.advanceRollout(request, this.#metadata, options, done));
  }

  /** Every working copy of the data plane. */
  async listWorkingCopies(): Promise<WorkingCopy[]> {
    const deadline = Date.now() + this.#options.deadlineMs;
    const stream: ClientReadableStream<ListWorkingCopiesResponse> = this.#client.listWorkingCopies({}, this.#metadata, {
      deadline,
    });
    const copies: WorkingCopy[] = [];
    for await (const { working_copies } of stream as AsyncIterable<ListWorkingCopiesResponse>) {
      copies.push(...working_copies);
    }
    return copies;
  }

  /** Follows the stream of changes until the signal aborts, whatever becomes of the connection. */
  async watch(listener: ChangeListener, signal: AbortSignal): Promise<void> {
    const { clock, logger } = this.#options;
    const backoff = new Backoff({ first: 200, longest: 5000 }, clock);
    while (!signal.aborted) {
      try {
        await this.#follow(listener, signal, () => backoff.reset());
        this.#failure = 'the data plane ended the stream';
      } catch (error) {
        this.#failure = error instanceof Error ? error.message : String(error);
      }
      this.#live = false;
      if (signal.aborted) return;
      const retryMs = backoff.next();
      logger.warn({ error: this.#failure, retryMs: Math.round(retryMs) }, 'lost the data plane: trying again');
      await sleep(clock, retryMs, signal);
    }
  }

  /** Throws while the stream of changes is not live. */
  check(): void {
    if (!this.#live) throw new Error(this.#failure);
  }

  /** Closes the connection. */
  close(): void {
    this.#client.close();
  }

  async #follow(listener: ChangeListener, signal: AbortSignal, onLive: () => void): Promise<void> {
    const stream: ClientReadableStream<WatchResponse> = this.#client.watch({}, this.#metadata);
    const cancel = (): void => stream.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    stream.on('data', (message: WatchResponse) => {
      if (!message.synced) return listener.onChange(message);
      this.#live = true;
      onLive();
      this.#options.logger.info('the data plane is connected');
      listener.onSynced();
    });
    try {
      await once(stream, 'end');
    } finally {
      signal.removeEventListener('abort', cancel);
      stream.on('error', () => undefined);
      stream.cancel();
    }
  }

  #call<R>(start: (options: { deadline: number }, done: Callback<R>) => void): Promise<R> {
    return new Promise((resolve, reject) => {
      const deadline = Date.now() + this.#options.deadlineMs;
      start({ deadline }, (error, response) => (error ? reject(error) : resolve(response)));
    });
  }
}
