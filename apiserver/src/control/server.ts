// The internal gRPC server of control (port 9091): a shared secret in the metadata, then the dispatcher, the rollout driver
// or the feed of changes. Never reachable through the gateway.
import { createHash, timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import {
  AdvanceRolloutResponseSchema,
  ControlService,
  WatchResponseSchema,
  type AdvanceRolloutRequest,
  type ApplyRequest,
  type RemoveRequest,
  type WatchRequest,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import {
  Server,
  ServerCredentials,
  status,
  type handleServerStreamingCall,
  type handleUnaryCall,
  type Metadata,
  type ServerWritableStream,
} from '@grpc/grpc-js';
import { codes, KelletError, toKelletError, unauthenticated } from '../platform/errors.ts';
import { grpcService } from '../platform/grpc-service.ts';
import type { Logger } from '../platform/logger.ts';
import type { RolloutDriver } from './applier.ts';
import type { Change, ChangeFeed } from './changes.ts';
import { kindNumbers, type Dispatcher } from './dispatcher.ts';

/** What the server hands its calls to. */
export interface ControlHandlers {
  readonly dispatcher: Dispatcher;
  readonly changes: ChangeFeed;
  /** Looked up at each call: the driver registers itself after the server was made. */
  rolloutDriver(): RolloutDriver | undefined;
}

/** The gRPC server of ControlService. */
export class ControlServer {
  private readonly server = new Server({ 'grpc.max_receive_message_length': 4 * 1024 * 1024 });
  private readonly secret: Buffer;
  private readonly logger: Logger;
  private readonly handlers: ControlHandlers;
  private readonly closing = new AbortController();

  constructor(secret: string, handlers: ControlHandlers, logger: Logger) {
    this.secret = digest(secret);
    this.logger = logger;
    this.handlers = handlers;
    this.server.addService(grpcService(ControlService), {
      Apply: this.unary((request: ApplyRequest) => handlers.dispatcher.apply(request)),
      Remove: this.unary((request: RemoveRequest) => handlers.dispatcher.remove(request)),
      AdvanceRollout: this.unary((request: AdvanceRolloutRequest) => this.advance(request)),
      Watch: ((call) => void this.watch(call)) satisfies handleServerStreamingCall<
        WatchRequest,
        MessageShape<typeof WatchResponseSchema>
      >,
    });
  }

  /** Listens; answers the port, which the system chooses when 0 is asked for. */
  listen(host: string, port: number): Promise<number> {
    return new Promise((resolve, reject) => {
      this.server.bindAsync(`${host}:${port}`, ServerCredentials.createInsecure(), (error, bound) => {
        if (error) reject(error);
        else resolve(bound);
      });
    });
  }

  /** Ends the streams, lets running calls finish for a few seconds, and closes. */
  async close(): Promise<void> {
    this.closing.abort();
    const force = setTimeout(() => this.server.forceShutdown(), 5000);
    await new Promise<void>((resolve) => this.server.tryShutdown(() => resolve()));
    clearTimeout(force);
  }

  private async advance(request: AdvanceRolloutRequest): Promise<MessageShape<typeof AdvanceRolloutResponseSchema>> {
    const driver = this.handlers.rolloutDriver();
    if (!driver) throw new KelletError('UNIMPLEMENTED', 'nothing in this process drives rollouts');
    return create(AdvanceRolloutResponseSchema, await driver.advance(request));
  }

  private unary<Request, Response>(run: (request: Request) => Promise<Response>): handleUnaryCall<Request, Response> {
    return (call, callback) => {
      const handled = async () => {
        this.authenticate(call.metadata);
        return run(call.request);
      };
      handled().then(
        (response) => callback(null, response),
        (error: unknown) => callback(this.statusOf(error, call.getPath())),
      );
    };
  }

  private async watch(
    call: ServerWritableStream<WatchRequest, MessageShape<typeof WatchResponseSchema>>,
  ): Promise<void> {
    const ended = new AbortController();
    call.once('cancelled', () => ended.abort());
    call.once('close', () => ended.abort());
    const signal = AbortSignal.any([ended.signal, this.closing.signal]);
    try {
      this.authenticate(call.metadata);
      for await (const change of this.handlers.changes.watch(signal)) {
        const accepted = call.write(create(WatchResponseSchema, change ? keyOf(change) : { synced: true }));
        // A slow reader holds its own queue back, where keys that repeat cost nothing.
        if (!accepted) await once(call, 'drain', { signal }).catch(() => undefined);
      }
      // The operator reconnects, to another process when this one is stopping.
      if (!ended.signal.aborted) call.emit('error', { code: status.UNAVAILABLE, details: 'this process is stopping' });
    } catch (error) {
      call.emit('error', this.statusOf(error, call.getPath()));
    }
  }

  /** The secret is compared as a digest, so that neither its content nor its length shows in the time taken. */
  private authenticate(metadata: Metadata): void {
    const given = metadata.get('authorization')[0];
    const token = typeof given === 'string' && given.startsWith('Bearer ') ? given.slice('Bearer '.length) : '';
    if (!timingSafeEqual(digest(token), this.secret)) throw unauthenticated('the control secret is required');
  }

  private statusOf(thrown: unknown, method: string): { code: status; details: string; message: string } {
    const error = toKelletError(thrown);
    if (error.code === 'INTERNAL') this.logger.error({ err: thrown, method }, 'a control call failed');
    return { code: codes[error.code].grpc, details: error.message, message: error.message };
  }
}

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

const keyOf = (change: Change): MessageInitShape<typeof WatchResponseSchema> => ({
  kind: kindNumbers[change.kind],
  tenantId: change.tenantId,
  namespace: change.namespace,
  name: change.name,
});
