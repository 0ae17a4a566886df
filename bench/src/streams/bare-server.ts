// The baseline: a grpc-js server whose streams send one message and stay open, with nothing behind it.
import { create, type Message } from '@bufbuild/protobuf';
import { Server, ServerCredentials, type ServerDuplexStream } from '@grpc/grpc-js';
import { ConnectResponseSchema, DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { grpcService } from '../../../apiserver/src/platform/grpc/grpc-service.ts';

const server = new Server({ 'grpc.max_concurrent_streams': 1000 });
server.addService(grpcService(DeviceLinkService), {
  Connect: (call: ServerDuplexStream<Message, Message>) => {
    call.on('data', () => call.write(create(ConnectResponseSchema, { event: { case: 'ready', value: {} } })));
    call.on('error', () => undefined);
  },
});
server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  process.send!(port);
});
process.once('disconnect', () => process.exit(0));
