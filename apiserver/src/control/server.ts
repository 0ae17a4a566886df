// ControlService on the internal port (9091): the dispatcher, the rollout driver and the feed of changes as gRPC. Never
// reachable through the gateway.
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
import { status, type handleServerStreamingCall, type handleUnaryCall, type ServerWritableStream } from '@grpc/grpc-js';
import type { InternalServer } from '../internal/server.ts';
import { codes, KelletError, toKelletError } from '../platform/errors.ts';
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

/** ControlService on the internal port, which lets in only who knows the secret. */
export class ControlServer {
  private readonly logger: Logger;
  private readonly handlers: ControlHandlers;
  private readonly stopping: AbortSignal;

  constructor(server: InternalServer, handlers: ControlHandlers, logger: Logger) {
    this.logger = logger;
    this.handlers = handlers;
    this.stopping = server.stopping;
    server.addService(grpcService(ControlService), {
      Apply: this.unary((request: ApplyRequest) => handlers.dispatcher.apply(request)),
      Remove: this.unary((request: RemoveRequest) => handlers.dispatcher.remove(request)),
      AdvanceRollout: this.unary((request: AdvanceRolloutRequest) => this.advance(request)),
      Watch: ((call) => void this.watch(call)) satisfies handleServerStreamingCall<
        WatchRequest,
        MessageShape<typeof WatchResponseSchema>
      >,
    });
  }

  private async advance(request: AdvanceRolloutRequest): Promise<MessageShape<typeof AdvanceRolloutResponseSchema>> {
    const driver = this.handlers.rolloutDriver();
    if (!driver) throw new KelletError('UNIMPLEMENTED', 'nothing in this process drives rollouts');
    return create(AdvanceRolloutResponseSchema, await driver.advance(request));
  }

  private unary<Request, Response>(run: (request: Request) => Promise<Response>): handleUnaryCall<Request, Response> {
    return (call, callback) => {
      run(call.request).then(
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
    const signal = AbortSignal.any([ended.signal, this.stopping]);
    try {
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

  private statusOf(thrown: unknown, method: string): { code: status; details: string; message: string } {
    const error = toKelletError(thrown);
    if (error.code === 'INTERNAL') this.logger.error({ err: thrown, method }, 'a control call failed');
    return { code: codes[error.code].grpc, details: error.message, message: error.message };
  }
}

const keyOf = (change: Change): MessageInitShape<typeof WatchResponseSchema> => ({
  kind: kindNumbers[change.kind],
  tenantId: change.tenantId,
  namespace: change.namespace,
  name: change.name,
});
