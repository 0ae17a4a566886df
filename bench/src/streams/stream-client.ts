// A process that opens streams of devices and keeps them open: bare HTTP/2, so that many fit into it. The first message has
// the options; replies with the seconds it took until all were open.
import { type ClientHttp2Session, connect } from 'node:http2';
import { setTimeout as sleep } from 'node:timers/promises';
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

/** Opens a stream; resolves to whether it is open, or has been refused. */
function openStream(session: ClientHttp2Session, path: string, key: string): Promise<boolean> {
  return new Promise((resolve) => {
    const headers = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers' };
    const stream = session.request({ ...headers, 'x-api-key': key });
    stream.once('data', () => resolve(true));
    stream.once('error', () => resolve(false));
    // Our side is still open, so the stream does not close by itself.
    stream.once('end', () => {
      stream.close();
      resolve(false);
    });
    stream.write(hello);
  });
}

async function openAll({ address, path, keys, perConnection }: StreamClientOptions): Promise<number> {
  const begun = performance.now();
  let next = 0;
  let session: ClientHttp2Session | undefined;
  const work = async (): Promise<void> => {
    while (next < keys.length) {
      const key = keys[next]!;
      if (next % perConnection === 0) session = connect(`http://${address}`);
      const own = session!;
      next += 1;
      // An overloaded server refuses; a device then tries again.
      while (!(await openStream(own, path, key))) await sleep(1000 * Math.random());
    }
  };
  await Promise.all(Array.from({ length: opening }, work));
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
