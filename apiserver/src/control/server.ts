// ControlService on the internal port (9091): the dispatcher, the rollout driver and the change feed as gRPC. Not reachable
// through the gateway.
import { once } from 'node:events';
import { create, type DescMessage, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import type { handleServerStreamingCall, handleUnaryCall, ServerWritableStream, status } from '@grpc/grpc-js';
import {
  type AdvanceRolloutRequest,
  AdvanceRolloutResponseSchema,
  type ApplyRequest,
  ControlService,
  type ListWorkingCopiesRequest,
  ListWorkingCopiesResponseSchema,
  type RemoveRequest,
  type WatchRequest,
  WatchResponseSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { InternalServer } from '../internal/server.ts';
import { codes, KelletError, toKelletError, unavailable } from '../platform/errors.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { RolloutDriver } from './applier.ts';
import type { Change, ChangeFeed } from './changes.ts';
import type { Dispatcher } from './dispatcher.ts';
import { kindNumbers } from './kinds.ts';

/** The handlers of the calls. */
export interface ControlHandlers {
  readonly dispatcher: Dispatcher;
  readonly changes: ChangeFeed;
  /** Yields a page of the working copies, many per message. */
  readonly workingCopies: (
    request: ListWorkingCopiesRequest,
    signal: AbortSignal,
  ) => AsyncIterable<MessageInitShape<typeof ListWorkingCopiesResponseSchema>>;
  /** Called for each request, because the driver is registered after the server has been created. */
  rolloutDriver(): RolloutDriver | undefined;
}

/** ControlService on the internal port, which requires the shared secret. */
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
      ListWorkingCopies: this.streaming(ListWorkingCopiesResponseSchema, handlers.workingCopies),
      Watch: this.streaming(WatchResponseSchema, (_request: WatchRequest, signal) => this.watch(signal)),
    });
  }

  private async advance(request: AdvanceRolloutRequest): Promise<MessageShape<typeof AdvanceRolloutResponseSchema>> {
    const driver = this.handlers.rolloutDriver();
    if (!driver) throw new KelletError('UNIMPLEMENTED', 'this process does not drive rollouts');
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

  private async *watch(signal: AbortSignal): AsyncGenerator<MessageInitShape<typeof WatchResponseSchema>> {
    for await (const change of this.handlers.changes.watch(signal)) yield change ? keyOf(change) : { synced: true };
    // Makes the operator reconnect to another process.
    if (this.stopping.aborted) throw unavailable('this process is stopping');
  }

  private streaming<Request, Response extends DescMessage>(
    schema: Response,
    messages: (request: Request, signal: AbortSignal) => AsyncIterable<MessageInitShape<Response>>,
  ): handleServerStreamingCall<Request, MessageShape<Response>> {
    const run = async (call: ServerWritableStream<Request, MessageShape<Response>>): Promise<void> => {
      const ended = new AbortController();
      call.once('cancelled', () => ended.abort());
      call.once('close', () => ended.abort());
      const signal = AbortSignal.any([ended.signal, this.stopping]);
      try {
        for await (const message of messages(call.request, signal)) {
          // A slow reader only delays its own queue, which holds each key once.
          if (!call.write(create(schema, message))) await once(call, 'drain', { signal }).catch(() => undefined);
        }
        call.end();
      } catch (error) {
        if (!ended.signal.aborted) call.emit('error', this.statusOf(error, call.getPath()));
      }
    };
    return (call) => void run(call);
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
