// A process that opens streams of devices and keeps them open: bare HTTP/2, so that many fit into it. The first message has
// the options; replies with the seconds it took until all were open.
import { connect } from 'node:http2';
import { create, toBinary } from '@bufbuild/protobuf';
import { ConnectRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';

/** Options of the process. */
export interface StreamClientOptions {
  readonly address: string;
  readonly path: string;
  /** A stream is opened with each. */
  readonly keys: readonly string[];
  readonly perConnection: number;
}

/** Streams that may be opening at the same time. */
const opening = 200;

/** A gRPC message: no compression, length, bytes. */
function framed(bytes: Uint8Array): Buffer {
  const frame = Buffer.alloc(5 + bytes.length);
  frame.writeUInt32BE(bytes.length, 1);
  frame.set(bytes, 5);
  return frame;
}

const hello = framed(
  toBinary(ConnectRequestSchema, create(ConnectRequestSchema, { event: { case: 'hello', value: {} } })),
);

async function openAll({ address, path, keys, perConnection }: StreamClientOptions): Promise<number> {
  const begun = performance.now();
  let next = 0;
  let session: ReturnType<typeof connect> | undefined;
  const openOne = (key: string, index: number): Promise<void> =>
    new Promise((resolve, reject) => {
      if (index % perConnection === 0) {
        session = connect(`http://${address}`);
        session.once('error', reject);
      }
      const headers = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers' };
      const stream = session!.request({ ...headers, 'x-api-key': key });
      stream.once('data', () => resolve());
      stream.once('error', reject);
      stream.once('close', () => reject(new Error('a stream has ended')));
      stream.write(hello);
    });
  await Promise.all(
    Array.from({ length: opening }, async () => {
      while (next < keys.length) {
        const index = next;
        next += 1;
        await openOne(keys[index]!, index);
      }
    }),
  );
  return (performance.now() - begun) / 1000;
}

process.once('message', (options: StreamClientOptions) => {
  openAll(options).then(
    (seconds) => process.send!(seconds),
    (error: unknown) => {
      process.stderr.write(`${String(error)}\n`);
      process.exit(1);
    },
  );
});
process.once('disconnect', () => process.exit(0));
