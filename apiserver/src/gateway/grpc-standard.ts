// What every gRPC server offers: grpc.health.v1.Health and grpc.reflection.v1.ServerReflection, both without credential.
import { create, toBinary, type DescFile, type DescService, type Message } from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt';
import type { Server, ServerDuplexStream, ServerUnaryCall, ServerWritableStream, sendUnaryData } from '@grpc/grpc-js';
import { status } from '@grpc/grpc-js';
import {
  Health as HealthService,
  HealthCheckResponse_ServingStatus as ServingStatus,
  HealthCheckResponseSchema,
  HealthListResponseSchema,
  type HealthCheckRequest,
} from '@kellet/proto/es/grpc/health/v1/health_pb';
import {
  ServerReflection,
  ServerReflectionResponseSchema,
  type ServerReflectionRequest,
  type ServerReflectionResponse,
} from '@kellet/proto/es/grpc/reflection/v1/reflection_pb';
import { grpcService } from '../platform/grpc-service.ts';
import type { Health } from './health.ts';

const watchMilliseconds = 1000;

/** Adds both services to a server that offers `services`. */
export function addStandardServices(server: Server, services: readonly DescService[], health: Health): void {
  addHealth(server, services, health);
  addReflection(server, [...services, HealthService, ServerReflection]);
}

function addHealth(server: Server, services: readonly DescService[], health: Health): void {
  const names = new Set(['', ...services.map((service) => service.typeName)]);
  const serving = async () => ((await health.readiness()).isReady ? ServingStatus.SERVING : ServingStatus.NOT_SERVING);
  server.addService(grpcService(HealthService), {
    Check: (call: ServerUnaryCall<HealthCheckRequest, Message>, done: sendUnaryData<Message>) => {
      if (!names.has(call.request.service)) return done({ code: status.NOT_FOUND, details: 'unknown service' });
      void serving().then((state) => done(null, create(HealthCheckResponseSchema, { status: state })));
    },
    List: (_call: ServerUnaryCall<Message, Message>, done: sendUnaryData<Message>) => {
      void serving().then((state) => {
        const statuses = Object.fromEntries([...names].map((name) => [name, { status: state }]));
        done(null, create(HealthListResponseSchema, { statuses }));
      });
    },
    Watch: (call: ServerWritableStream<HealthCheckRequest, Message>) => {
      let last: ServingStatus | undefined;
      const look = async (): Promise<void> => {
        const state = names.has(call.request.service) ? await serving() : ServingStatus.SERVICE_UNKNOWN;
        if (state !== last && !call.cancelled) call.write(create(HealthCheckResponseSchema, { status: state }));
        last = state;
      };
      void look();
      const timer = setInterval(() => void look(), watchMilliseconds);
      call.on('cancelled', () => clearInterval(timer));
      call.on('close', () => clearInterval(timer));
    },
  });
}

function addReflection(server: Server, services: readonly DescService[]): void {
  const files = new Map<string, DescFile>();
  const symbols = new Map<string, DescFile>();
  for (const service of services) collect(service.file, files, symbols);

  const answer = (request: ServerReflectionRequest): ServerReflectionResponse['messageResponse'] => {
    const { messageRequest } = request;
    switch (messageRequest.case) {
      case 'listServices': {
        const service = services.map(({ typeName }) => ({ name: typeName }));
        const value = create(ServerReflectionResponseSchema, {
          messageResponse: { case: 'listServicesResponse', value: { service } },
        });
        return value.messageResponse;
      }
      case 'fileByFilename':
        return fileAnswer(files.get(messageRequest.value));
      case 'fileContainingSymbol':
        return fileAnswer(symbols.get(messageRequest.value));
      case 'fileContainingExtension':
      case 'allExtensionNumbersOfType':
      case undefined:
        return errorAnswer(status.UNIMPLEMENTED, 'not supported');
    }
  };
  server.addService(grpcService(ServerReflection), {
    ServerReflectionInfo: (call: ServerDuplexStream<ServerReflectionRequest, Message>) => {
      call.on('data', (request: ServerReflectionRequest) => {
        call.write(
          create(ServerReflectionResponseSchema, {
            validHost: request.host,
            originalRequest: request,
            messageResponse: answer(request),
          }),
        );
      });
      call.on('end', () => call.end());
    },
  });
}

/** A file and everything it imports, by name and by the symbols in it. */
function collect(file: DescFile, files: Map<string, DescFile>, symbols: Map<string, DescFile>): void {
  if (files.has(file.proto.name)) return;
  files.set(file.proto.name, file);
  for (const service of file.services) {
    symbols.set(service.typeName, file);
    for (const method of service.methods) symbols.set(`${service.typeName}.${method.name}`, file);
  }
  const messages = [...file.messages];
  for (let message = messages.pop(); message; message = messages.pop()) {
    symbols.set(message.typeName, file);
    for (const nested of message.nestedEnums) symbols.set(nested.typeName, file);
    messages.push(...message.nestedMessages);
  }
  for (const item of [...file.enums, ...file.extensions]) symbols.set(item.typeName, file);
  for (const dependency of file.dependencies) collect(dependency, files, symbols);
}

function fileAnswer(file: DescFile | undefined): ServerReflectionResponse['messageResponse'] {
  if (!file) return errorAnswer(status.NOT_FOUND, 'not found');
  const fileDescriptorProto = [toBinary(FileDescriptorProtoSchema, file.proto)];
  return create(ServerReflectionResponseSchema, {
    messageResponse: { case: 'fileDescriptorResponse', value: { fileDescriptorProto } },
  }).messageResponse;
}

function errorAnswer(errorCode: number, errorMessage: string): ServerReflectionResponse['messageResponse'] {
  return create(ServerReflectionResponseSchema, {
    messageResponse: { case: 'errorResponse', value: { errorCode, errorMessage } },
  }).messageResponse;
}
