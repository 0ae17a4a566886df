// Implements grpc.health.v1.Health for the public and the internal port.
import { create, type Message } from '@bufbuild/protobuf';
import {
  type sendUnaryData,
  type ServerUnaryCall,
  type ServerWritableStream,
  type ServiceDefinition,
  status,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import {
  Health as HealthService,
  type HealthCheckRequest,
  HealthCheckResponse_ServingStatus as ServingStatus,
  HealthCheckResponseSchema,
  HealthListResponseSchema,
} from '@kellet/proto/es/grpc/health/v1/health_pb';
import { grpcService } from './grpc-service.ts';

const watchMilliseconds = 500;

/** The part of a gRPC server that services are added to. */
export interface ServiceHost {
  addService(definition: ServiceDefinition, implementation: UntypedServiceImplementation): void;
}

/** The inputs of the health service. */
export interface HealthParts {
  /** Full names of the services; the empty name, for the server as a whole, is always known. */
  readonly services: readonly string[];
  /** Reports whether a service (or the server, for the empty name) is serving now. */
  readonly isServing: (service: string) => Promise<boolean>;
  /** Aborts when the server stops: watches then get a final status and end. */
  readonly stopping: AbortSignal;
}

/** Adds the service to a server. */
export function addHealth(server: ServiceHost, parts: HealthParts): void {
  const names = new Set(['', ...parts.services]);
  const stateOf = async (name: string): Promise<ServingStatus> => {
    if (!names.has(name)) return ServingStatus.SERVICE_UNKNOWN;
    if (parts.stopping.aborted) return ServingStatus.NOT_SERVING;
    return (await parts.isServing(name)) ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
  };
  // Every watcher and the last state sent to it. One timer serves all, so that watching costs the same for any number.
  const watchers = new Map<ServerWritableStream<HealthCheckRequest, Message>, ServingStatus | undefined>();
  let timer: NodeJS.Timeout | undefined;
  const look = async (): Promise<void> => {
    const watched = new Set([...watchers.keys()].map(({ request }) => request.service));
    const states = new Map(await Promise.all([...watched].map(async (name) => [name, await stateOf(name)] as const)));
    for (const [call, last] of watchers) {
      const state = states.get(call.request.service);
      if (state === undefined || state === last || call.cancelled) continue;
      watchers.set(call, state);
      call.write(create(HealthCheckResponseSchema, { status: state }));
    }
  };
  const endWatches = async (): Promise<void> => {
    await look();
    for (const call of watchers.keys()) call.end();
  };
  parts.stopping.addEventListener('abort', () => void endWatches(), { once: true });
  server.addService(grpcService(HealthService), {
    Check: (call: ServerUnaryCall<HealthCheckRequest, Message>, done: sendUnaryData<Message>) => {
      const name = call.request.service;
      if (!names.has(name)) return done({ code: status.NOT_FOUND, details: 'unknown service' });
      void stateOf(name).then((state) => done(null, create(HealthCheckResponseSchema, { status: state })));
    },
    List: (_call: ServerUnaryCall<Message, Message>, done: sendUnaryData<Message>) => {
      const entries = [...names].map(async (name) => [name, { status: await stateOf(name) }] as const);
      void Promise.all(entries).then((statuses) =>
        done(null, create(HealthListResponseSchema, { statuses: Object.fromEntries(statuses) })),
      );
    },
    Watch: (call: ServerWritableStream<HealthCheckRequest, Message>) => {
      watchers.set(call, undefined);
      timer ??= setInterval(() => void look(), watchMilliseconds);
      const leave = (): void => {
        watchers.delete(call);
        if (watchers.size > 0) return;
        clearInterval(timer);
        timer = undefined;
      };
      call.once('cancelled', leave);
      call.once('close', leave);
      void look();
      if (parts.stopping.aborted) void endWatches();
    },
  });
}
