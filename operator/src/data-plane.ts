// Client of the data plane's control service: calls with a deadline, and the stream of changes.
import { once } from 'node:events';
import {
  type ChannelCredentials,
  type ClientReadableStream,
  credentials,
  experimental,
  Metadata,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import {
  type AdvanceRolloutRequest,
  type AdvanceRolloutResponse,
  type ApplyRequest,
  type ApplyResponse,
  ControlServiceClient,
  ListWorkingCopiesRequest,
  type ListWorkingCopiesResponse,
  type RemoveRequest,
  type RemoveResponse,
  type WatchResponse,
  type WorkingCopy,
} from '@kellet/proto/ts/kellet/control/v1/control';
import { Backoff } from './runtime/backoff.ts';
import { type Clock, sleep } from './runtime/clock.ts';
import type { Logger } from './runtime/logger.ts';

/** The data plane's operations. All calls are idempotent; errors are retried. */
export interface DataPlane {
  apply(request: ApplyRequest): Promise<ApplyResponse>;
  remove(request: RemoveRequest): Promise<RemoveResponse>;
  advanceRollout(request: AdvanceRolloutRequest): Promise<AdvanceRolloutResponse>;
}

/** A page of working copies. */
export interface WorkingCopyPage {
  readonly copies: readonly WorkingCopy[];
  /** Of the page that follows; empty at the end. */
  readonly nextPageToken: string;
}

/**
 * Reports whether an Apply failed because a newer version of the resource had been applied, so that the cache is stale.
 */
export const isOvertaken = (error: unknown): boolean => (error as Partial<ServiceError>).code === status.ABORTED;

/**
 * Delay until a resource with a stale copy is reconciled, unless the watch reports the change earlier, in milliseconds.
 */
export const overtakenRetryMilliseconds = 1000;

/** Receives the stream of changes. */
export interface ChangeListener {
  /** Called when the stream has been established, initially or again. Earlier changes may have been missed. */
  onSynced: () => void;
  onChange: (change: WatchResponse) => void;
}

/** Options of a client. */
export interface DataPlaneOptions {
  /** host:port. */
  address: string;
  secret: string;
  /** With TLS. */
  tls?: ControlTlsFiles | undefined;
  clock: Clock;
  logger: Logger;
  /** Deadline of calls in milliseconds (default 30 s). */
  deadlineMilliseconds?: number;
}

/** PEM files, which are read again when they change. */
export interface ControlTlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /** The authority that has signed the certificates of operator and data plane. */
  readonly caFile: string;
}

const certificateLookMilliseconds = 10_000;

/** The authority vouches for the data plane, whatever name the operator reaches it by. */
function credentialsOf(files: ControlTlsFiles | undefined): ChannelCredentials {
  if (!files) return credentials.createInsecure();
  const provider = new experimental.FileWatcherCertificateProvider({
    ...{ certificateFile: files.certFile, privateKeyFile: files.keyFile, caCertificateFile: files.caFile },
    refreshIntervalMs: certificateLookMilliseconds,
  });
  const verification = { checkServerIdentity: () => undefined };
  return experimental.createCertificateProviderChannelCredentials(provider, provider, verification);
}

type Callback<R> = (error: ServiceError | null, response: R) => void;

/** gRPC client. It reconnects automatically; calls fail immediately while the data plane is unavailable. */
export class ControlClient implements DataPlane {
  private readonly options: DataPlaneOptions & { deadlineMilliseconds: number };
  private readonly client: ControlServiceClient;
  private readonly metadata = new Metadata();
  private live = false;
  private failure = 'not connected yet';

  constructor(options: DataPlaneOptions) {
    this.options = { deadlineMilliseconds: 30_000, ...options };
    this.metadata.set('authorization', `Bearer ${options.secret}`);
    this.client = new ControlServiceClient(options.address, credentialsOf(options.tls), {
      // In handshakes; an address is not allowed there. It is not verified.
      'grpc.ssl_target_name_override': 'kellet-control',
      // Detects a vanished peer within 25 s.
      'grpc.keepalive_time_ms': 20_000,
      'grpc.keepalive_timeout_ms': 5000,
      'grpc.keepalive_permit_without_calls': 1,
      'grpc.initial_reconnect_backoff_ms': 200,
      'grpc.max_reconnect_backoff_ms': 5000,
    });
  }

  apply(request: ApplyRequest): Promise<ApplyResponse> {
    return this.call((options, done) => this.client.apply(request, this.metadata, options, done));
  }

  remove(request: RemoveRequest): Promise<RemoveResponse> {
    return this.call((options, done) => this.client.remove(request, this.metadata, options, done));
  }

  advanceRollout(request: AdvanceRolloutRequest): Promise<AdvanceRolloutResponse> {
    return this.call((options, done) => this.client.advanceRollout(request, this.metadata, options, done));
  }

  /** Returns the working copies that follow a page, at most so many, and the token of the next page, which is empty at the end. */
  async listWorkingCopies(pageToken: string, pageSize: number): Promise<WorkingCopyPage> {
    const request = ListWorkingCopiesRequest.fromPartial({ page_size: pageSize, page_token: pageToken });
    const deadline = Date.now() + this.options.deadlineMilliseconds;
    const stream: ClientReadableStream<ListWorkingCopiesResponse> = this.client.listWorkingCopies(
      request,
      this.metadata,
      { deadline },
    );
    const copies: WorkingCopy[] = [];
    let nextPageToken = '';
    for await (const message of stream as AsyncIterable<ListWorkingCopiesResponse>) {
      copies.push(...message.working_copies);
      nextPageToken = message.next_page_token;
    }
    return { copies, nextPageToken };
  }

  /** Follows the stream of changes until the signal aborts, reconnecting as necessary. */
  async watch(listener: ChangeListener, signal: AbortSignal): Promise<void> {
    const { clock, logger } = this.options;
    const backoff = new Backoff({ first: 200, longest: 5000 }, clock);
    while (!signal.aborted) {
      try {
        await this.follow(listener, signal, () => backoff.reset());
        this.failure = 'the data plane ended the stream';
      } catch (error) {
        this.failure = error instanceof Error ? error.message : String(error);
      }
      this.live = false;
      if (signal.aborted) return;
      const retryMilliseconds = backoff.next();
      logger.warn(
        { error: this.failure, retryMilliseconds: Math.round(retryMilliseconds) },
        'lost the connection to the data plane: reconnecting',
      );
      await sleep(clock, retryMilliseconds, signal);
    }
  }

  /** Throws while the stream of changes is not established. */
  check(): void {
    if (!this.live) throw new Error(this.failure);
  }

  /** Closes the connection. */
  close(): void {
    this.client.close();
  }

  private async follow(listener: ChangeListener, signal: AbortSignal, onLive: () => void): Promise<void> {
    const stream: ClientReadableStream<WatchResponse> = this.client.watch({}, this.metadata);
    const cancel = (): void => stream.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    stream.on('data', (message: WatchResponse) => {
      if (!message.synced) return listener.onChange(message);
      this.live = true;
      onLive();
      this.options.logger.info('connected to the data plane');
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

  private call<R>(start: (options: { deadline: number }, done: Callback<R>) => void): Promise<R> {
    return new Promise((resolve, reject) => {
      const deadline = Date.now() + this.options.deadlineMilliseconds;
      start({ deadline }, (error, response) => (error ? reject(error) : resolve(response)));
    });
  }
}
