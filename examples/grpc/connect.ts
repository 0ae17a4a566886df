// A device on the stream DeviceLinkService.Connect: carries out commands, responds, and connects again after a loss.
//
//   KELLET_GRPC=127.0.0.1:9090 DEVICE_KEY=sk_live_… node examples/grpc/connect.ts [COMMANDS]
//
// Needs @grpc/grpc-js and @grpc/proto-loader. Ends once COMMANDS commands have been acknowledged; without it, runs until it is stopped.
import path from 'node:path';
import { type ClientDuplexStream, credentials, loadPackageDefinition, Metadata, status } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

interface Command {
  correlation_id: string;
  method: string;
}
interface FromPlatform {
  ready?: object;
  command?: Command;
  acknowledgement?: { correlation_id: string; code: string; message: string };
}
type Stream = ClientDuplexStream<object, FromPlatform>;

const root = path.join(import.meta.dirname, '../../proto');
const definition = loadSync('kellet/v1/device_link.proto', {
  ...{ includeDirs: [root, path.join(root, 'vendor')], keepCase: true, oneofs: true },
});
const { kellet } = loadPackageDefinition(definition) as unknown as {
  kellet: { v1: { DeviceLinkService: new (...args: unknown[]) => { Connect(metadata: Metadata): Stream } } };
};
const client = new kellet.v1.DeviceLinkService(process.env['KELLET_GRPC'], credentials.createInsecure());
const metadata = new Metadata();
metadata.set('x-api-key', process.env['DEVICE_KEY'] ?? '');
const wanted = Number(process.argv[2] ?? Infinity);

const print = (line: string) => process.stdout.write(`${line}\n`);

/** Responses by correlation id. A command may arrive twice: it is carried out once, and gets the same response. */
const responses = new Map<string, object>();
const acknowledged = new Set<string>();
let failures = 0;

function carryOut({ correlation_id, method }: Command): object {
  print(`carrying out ${method}`);
  return { correlation_id, success: true };
}

function connect(): void {
  const stream = client.Connect(metadata);
  stream.on('data', ({ ready, command, acknowledgement }: FromPlatform) => {
    if (ready) failures = 0;
    if (command) {
      const response = responses.get(command.correlation_id) ?? carryOut(command);
      responses.set(command.correlation_id, response);
      if (responses.size > 1000) responses.delete(responses.keys().next().value!);
      stream.write({ response });
    }
    if (acknowledgement) {
      print(`${acknowledgement.correlation_id} ${acknowledgement.code || 'acknowledged'}`);
      acknowledged.add(acknowledgement.correlation_id);
      if (acknowledged.size >= wanted) process.exit(0);
    }
  });
  stream.on('error', ({ code, message }: Error & { code: number }) => {
    print(message);
    // A newer stream of this device is open, or the key is not valid any more.
    if ([status.ABORTED, status.UNAUTHENTICATED, status.PERMISSION_DENIED].includes(code)) process.exit(1);
    setTimeout(connect, Math.random() * Math.min(60_000, 1000 * 2 ** failures));
    failures += 1;
  });
  stream.on('end', () => undefined);
  stream.write({ hello: {} });
}
connect();
