// The NATS connection, which reconnects by itself. Nothing that serves a device waits for it.
import {
  connect,
  ErrorCode,
  Events,
  headers as natsHeaders,
  type JetStreamClient,
  type NatsConnection,
  NatsError,
} from 'nats';
import { sleep } from '../clock.ts';
import type { Logger } from '../observability/logger.ts';
import { parseBrokerServers } from './broker-servers.ts';
import { streamName, streamSubjects, tenantSubjects } from './subjects.ts';

/** Reports whether a message was not published because it exceeds the maximum size of the broker. */
export const isTooLarge = (error: unknown): boolean =>
  error instanceof NatsError && error.code === (ErrorCode.MaxPayloadExceeded as string);

/** JetStream error codes about the account or the stream, which may be temporary. */
const passing: ReadonlySet<number> = new Set([
  10002, // resource limits of the account exceeded
  10109, // stream is sealed
]);

/**
 * Returns why the broker will never accept a message, however often it is sent; undefined if it may accept it later.
 * Permanent causes are the size limit of the broker or the stream, and a response that the message is a bad request.
 */
export function refusalOf(error: unknown): string | undefined {
  if (isTooLarge(error)) return 'larger than max_payload of the broker';
  if (!(error instanceof NatsError)) return undefined;
  const refusal = error.jsError();
  return refusal?.code === 400 && !passing.has(refusal.err_code ?? 0) ? refusal.description : undefined;
}

/** JetStream error codes about a limit on bytes that is more than the broker can reserve. */
const lacksRoom: ReadonlySet<number> = new Set([10023, 10028, 10047]);

/** Limit on bytes published but not confirmed by the broker; further publications are dropped. */
const maxUnconfirmedBytes = 8 * 1024 * 1024;

/** The broker as the data plane uses it. */
export class Broker {
  private readonly url: string;
  private readonly logger: Logger;
  private readonly replicas: number;
  private readonly streamBytes: number | undefined;
  private readonly closing = new AbortController();
  private connection: NatsConnection | undefined;
  private jetStream: JetStreamClient | undefined;
  private isOnline = false;
  private restoring: Promise<void> | undefined;
  private unconfirmedBytes = 0;
  private confirming: Promise<void> | undefined;
  private readonly connected: Promise<void>;
  private readonly onConnect: ((connection: NatsConnection) => void)[] = [];

  /**
   * `replicas` is how many members of a cluster store each event; 0 leaves the stream as it is, and makes a new one with 1.
   * `streamBytes` is how much the stream keeps (0: no limit); undefined leaves it as it is.
   */
  constructor(url: string, logger: Logger, replicas = 0, streamBytes?: number) {
    this.url = url;
    this.logger = logger;
    this.replicas = replicas;
    this.streamBytes = streamBytes;
    this.connected = this.connectLoop();
  }

  private async connectLoop(): Promise<void> {
    const { signal } = this.closing;
    let isAway = false;
    for (let delay = 100; !signal.aborted; delay = Math.min(delay * 2, 5000)) {
      try {
        // User and password of the URL are passed as options, so that they never appear in a log line.
        const { servers, user, password, token, requiresTls } = parseBrokerServers(this.url);
        const connection = await connect({
          ...{ servers: [...servers], user, pass: password, token, tls: requiresTls ? {} : undefined },
          maxReconnectAttempts: -1,
          reconnectTimeWait: 500,
          timeout: 5000,
          // A broker that has vanished is detected within fifteen seconds.
          pingInterval: 5000,
          maxPingOut: 2,
          name: 'kellet-apiserver',
        });
        await this.ensureStream(connection).catch(async (error: unknown) => {
          await connection.close();
          throw error;
        });
        this.connection = connection;
        this.isOnline = true;
        void this.follow(connection);
        this.jetStream = connection.jetstream();
        if (isAway) this.logger.info('connected to the broker');
        for (const run of this.onConnect) run(connection);
        return;
      } catch (error) {
        if (!isAway) this.logger.warn({ err: error }, 'the broker is unreachable; retrying');
        isAway = true;
        await sleep(delay, signal);
      }
    }
  }

  /** Tracks when the connection is lost and restored. */
  private async follow(connection: NatsConnection): Promise<void> {
    for await (const { type } of connection.status()) {
      if (type === Events.Disconnect) this.setOnline(false);
      if (type === Events.Reconnect) this.setOnline(true);
    }
    this.isOnline = false;
  }

  private setOnline(isOnline: boolean): void {
    if (this.isOnline !== isOnline && !this.closing.signal.aborted) {
      if (isOnline) this.logger.info('reconnected to the broker');
      else this.logger.warn('lost the connection to the broker; events wait in the database');
    }
    this.isOnline = isOnline;
  }

  private async ensureStream(connection: NatsConnection): Promise<void> {
    const manager = await connection.jetstreamManager();
    const wanted = {
      name: streamName,
      subjects: streamSubjects,
      max_age: 7 * 24 * 3600 * 1e9,
      duplicate_window: 120 * 1e9,
      ...(this.replicas === 0 ? {} : { num_replicas: this.replicas }),
    };
    const exists = await manager.streams.info(streamName).then(
      () => true,
      () => false,
    );
    const ensure = async (limits: { readonly max_bytes?: number }): Promise<void> => {
      if (exists) await manager.streams.update(streamName, { ...wanted, ...limits });
      else await manager.streams.add({ ...wanted, ...limits });
    };
    if (!this.streamBytes) return ensure(this.streamBytes === 0 ? { max_bytes: -1 } : {});
    await ensure({ max_bytes: this.streamBytes }).catch((error: unknown) => {
      if (!(error instanceof NatsError) || !lacksRoom.has(error.jsError()?.err_code ?? 0)) throw error;
      // The broker reserves the bytes. Without that the stream is limited by what the broker has.
      const settings = { streamBytes: this.streamBytes, reason: error.message };
      this.logger.warn(settings, 'the broker has less room than KELLET_NATS_STREAM_BYTES: the limit is not in force');
      return ensure({});
    });
  }

  /** Resolves if the broker responds; throws the reason otherwise. */
  async ping(): Promise<void> {
    if (!this.connection) throw new Error('not connected');
    await this.connection.flush();
  }

  /**
   * Publishes into the stream and waits until the message is stored. `messageId` makes a repetition within two minutes
   * harmless. Rejects if the broker is unavailable; the caller keeps the message and retries.
   */
  async publish(subject: string, payload: Uint8Array, messageId: string): Promise<void> {
    if (!this.jetStream) throw new Error('the broker is not connected');
    try {
      await this.jetStream.publish(subject, payload, { msgID: messageId, timeout: 5000, headers: natsHeaders() });
    } catch (error) {
      // No stream accepts the subject: the broker has restarted without its files.
      if (error instanceof NatsError && error.code === (ErrorCode.NoResponders as string)) await this.restoreStream();
      throw error;
    }
  }

  private restoreStream(): Promise<void> {
    this.restoring ??= this.ensureStream(this.connection!).finally(() => (this.restoring = undefined));
    return this.restoring;
  }

  /**
   * Removes the stored events of a tenant that have it in their subject. Throws if the broker does not respond; what
   * is left is dropped by age, within a week.
   */
  async purgeTenant(tenantId: string): Promise<void> {
    if (!this.connection) throw new Error('the broker is not connected');
    const manager = await this.connection.jetstreamManager();
    for (const filter of tenantSubjects(tenantId)) await manager.streams.purge(streamName, { filter });
  }

  /** Whether the connection is up, as far as is known. */
  get isConnected(): boolean {
    return this.isOnline;
  }

  /**
   * Publishes without storage, best effort: the message is lost if nothing subscribes, if it is larger than the broker takes, or if
   * the broker is down or too slow.
   */
  publishLive(subject: string, payload: Uint8Array): void {
    // Unsent data is held in memory.
    if (!this.isOnline || this.unconfirmedBytes > maxUnconfirmedBytes) return;
    if (payload.length > (this.connection!.info?.max_payload ?? 0)) return;
    this.unconfirmedBytes += payload.length;
    this.connection!.publish(subject, payload);
    this.confirming ??= this.confirm().finally(() => (this.confirming = undefined));
  }

  /** Waits until the broker has received everything published so far. */
  private async confirm(): Promise<void> {
    const bytes = this.unconfirmedBytes;
    await this.connection!.flush().catch(() => undefined);
    this.unconfirmedBytes -= bytes;
  }

  /** Calls `run` once there is a connection: for consumers, which then survive reconnects by themselves. */
  whenConnected(run: (connection: NatsConnection) => void): void {
    if (this.connection) run(this.connection);
    else this.onConnect.push(run);
  }

  async close(): Promise<void> {
    this.closing.abort();
    await this.connected;
    // An unresponsive broker is not waited for.
    const drained = this.connection?.drain().catch(() => undefined);
    const over = new AbortController();
    await Promise.race([drained, sleep(2000, over.signal)]);
    over.abort();
    if (this.connection && !this.connection.isClosed()) void this.connection.close();
  }
}
