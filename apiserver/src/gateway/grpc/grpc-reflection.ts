// grpc.reflection v1, and v1alpha for older clients, whose messages are identical.
import { create, type DescFile, type DescService, type Message, toBinary } from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt';
import { type MethodDefinition, type ServerDuplexStream, type ServiceDefinition, status } from '@grpc/grpc-js';
import { file_google_rpc_error_details } from '@kellet/proto/es/google/rpc/error_details_pb';
import {
  ServerReflection,
  type ServerReflectionRequest,
  type ServerReflectionResponse,
  ServerReflectionResponseSchema,
} from '@kellet/proto/es/grpc/reflection/v1/reflection_pb';
import type { ServiceHost } from '../../platform/grpc/grpc-health.ts';
import { grpcService } from '../../platform/grpc/grpc-service.ts';

/** Returns the definition under the older name. */
function alphaDefinition(): ServiceDefinition {
  const methods = Object.entries(grpcService(ServerReflection)) as [string, MethodDefinition<Message, Message>][];
  return Object.fromEntries(
    methods.map(([name, method]) => [
      name,
      { ...method, path: method.path.replace('.reflection.v1.', '.reflection.v1alpha.') },
    ]),
  );
}

/** Adds reflection to a server, for the offered services and itself. */
export function addReflection(server: ServiceHost, offered: readonly DescService[], stopping: AbortSignal): void {
  const services = [...offered, ServerReflection];
  const files = new Map<string, DescFile>();
  const symbols = new Map<string, DescFile>();
  const extensions = new Map<string, Map<number, DescFile>>();
  for (const service of services) collect(service.file, files, symbols, extensions);
  // Types carried in grpc-status-details-bin; no service refers to them.
  collect(file_google_rpc_error_details, files, symbols, extensions);

  const responseTo = (request: ServerReflectionRequest): ServerReflectionResponse['messageResponse'] => {
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
        return fileResponse(files.get(messageRequest.value));
      case 'fileContainingSymbol':
        return fileResponse(symbols.get(messageRequest.value));
      case 'fileContainingExtension': {
        const { containingType, extensionNumber } = messageRequest.value;
        return fileResponse(extensions.get(containingType)?.get(extensionNumber));
      }
      case 'allExtensionNumbersOfType': {
        const baseTypeName = messageRequest.value;
        const known = extensions.get(baseTypeName);
        if (!known && !symbols.has(baseTypeName)) return errorResponse(status.NOT_FOUND, 'not found');
        const value = { baseTypeName, extensionNumber: [...(known?.keys() ?? [])] };
        const response = { case: 'allExtensionNumbersResponse', value } as const;
        return create(ServerReflectionResponseSchema, { messageResponse: response }).messageResponse;
      }
      case undefined:
        return errorResponse(status.INVALID_ARGUMENT, 'the request is empty');
    }
  };
  const implementation = {
    ServerReflectionInfo: (call: ServerDuplexStream<ServerReflectionRequest, Message>) => {
      call.on('data', (request: ServerReflectionRequest) => {
        const response = create(ServerReflectionResponseSchema, {
          validHost: request.host,
          originalRequest: request,
          messageResponse: responseTo(request),
        });
        // The next request is read once the client has read this response.
        if (call.write(response)) return;
        call.pause();
        call.once('drain', () => call.resume());
      });
      const end = (): void => void call.end();
      call.on('end', end);
      stopping.addEventListener('abort', end, { once: true });
      call.once('close', () => stopping.removeEventListener('abort', end));
    },
  };
  server.addService(grpcService(ServerReflection), implementation);
  server.addService(alphaDefinition(), implementation);
}

/** Collects a file and its imports, by name and by symbol. */
function collect(
  file: DescFile,
  files: Map<string, DescFile>,
  symbols: Map<string, DescFile>,
  extensions: Map<string, Map<number, DescFile>>,
): void {
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
  for (const { extendee, number } of file.extensions) {
    const ofType = extensions.get(extendee.typeName) ?? new Map<number, DescFile>();
    extensions.set(extendee.typeName, ofType.set(number, file));
  }
  for (const dependency of file.dependencies) collect(dependency, files, symbols, extensions);
}

/** Encoded files by descriptor; there are as many as the services have. */
const encodedFiles = new Map<DescFile, Uint8Array>();

function fileResponse(file: DescFile | undefined): ServerReflectionResponse['messageResponse'] {
  if (!file) return errorResponse(status.NOT_FOUND, 'not found');
  const encoded = encodedFiles.get(file) ?? toBinary(FileDescriptorProtoSchema, file.proto);
  encodedFiles.set(file, encoded);
  const fileDescriptorProto = [encoded];
  return create(ServerReflectionResponseSchema, {
    messageResponse: { case: 'fileDescriptorResponse', value: { fileDescriptorProto } },
  }).messageResponse;
}

function errorResponse(errorCode: number, errorMessage: string): ServerReflectionResponse['messageResponse'] {
  return create(ServerReflectionResponseSchema, {
    messageResponse: { case: 'errorResponse', value: { errorCode, errorMessage } },
  }).messageResponse;
}
