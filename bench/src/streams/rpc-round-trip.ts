// rpc-round-trip: from sending a command to its response, by a device on a stream. Compared with the least that PostgreSQL
// needs for it: a row inserted and announced, updated and announced again.
import { once } from 'node:events';
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ClientDuplexStream } from '@grpc/grpc-js';
import {
  ConnectRequestSchema,
  DeviceLinkService,
  GetRpcRequestSchema,
  RpcRecord_Status,
  SendRpcRequestSchema,
  type ConnectRequest,
  type ConnectResponse,
  type RpcRecord,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import pg from 'pg';
import { grpcService } from '../../../apiserver/src/platform/grpc/grpc-service.ts';
import { startEnvironment, type Environment } from '../environment.ts';
import { format, median, type Suite } from '../harness.ts';
import { mintDeviceKeys } from './device-keys.ts';

const service = grpcService(DeviceLinkService);
const commands = 1000;

/** The suite. */
export const rpcRoundTrip: Suite = {
  name: 'rpc-round-trip',
  run: async (report) => {
    report('rpc-round-trip: preparing');
    const environment = await startEnvironment(report, 10);
    try {
      const [ours, bare] = [await measureCommands(environment), await measureRows(environment)];
      const remarks = { 'p99 ms': percentile(ours, 0.99), 'PostgreSQL alone p99 ms': percentile(bare, 0.99) };
      const [value, baseline] = [median(ours), median(bare)];
      report(
        `rpc-round-trip: p50 ${format(value)} ms, p99 ${format(remarks['p99 ms'])} ms, PostgreSQL alone ${format(baseline)} ms`,
      );
      return [
        {
          ...{ name: 'rpc-round-trip', value, unit: 'ms', baseline: 'PostgreSQL alone', baseline_value: baseline },
          ...{ ratio: value / baseline, rounds: 1, remarks },
        },
      ];
    } finally {
      await environment.close();
    }
  },
};

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(values.length * share) - 1]!;

const metadataOf = (key: string): Metadata => {
  const metadata = new Metadata();
  metadata.set('x-api-key', key);
  return metadata;
};

async function measureCommands(environment: Environment): Promise<number[]> {
  const [key] = await mintDeviceKeys(environment);
  const deviceId = environment.deviceIds[0]!;
  const client = new Client(environment.grpc, credentials.createInsecure());
  const unary = <T>(name: string, request: unknown): Promise<T> => {
    const { path, requestSerialize, responseDeserialize } = service[name]!;
    return new Promise((resolve, reject) => {
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadataOf(environment.apiKey),
        {},
        (error, response) => (error ? reject(error) : resolve(response as T)),
      );
    });
  };
  const { path, requestSerialize, responseDeserialize } = service['Connect']!;
  const stream = client.makeBidiStreamRequest(
    path,
    requestSerialize,
    responseDeserialize,
    metadataOf(key!),
    {},
  ) as unknown as ClientDuplexStream<ConnectRequest, ConnectResponse>;
  stream.on('error', () => undefined);
  stream.on('data', ({ event }: ConnectResponse) => {
    if (event.case !== 'command') return;
    const response = { correlationId: event.value.correlationId, success: true };
    stream.write(create(ConnectRequestSchema, { event: { case: 'response', value: response } }));
  });
  stream.write(create(ConnectRequestSchema, { event: { case: 'hello', value: {} } }));
  await once(stream, 'data');
  const milliseconds: number[] = [];
  for (let count = 0; count < commands; count += 1) {
    const begun = performance.now();
    const sent = await unary<RpcRecord>('SendRpc', create(SendRpcRequestSchema, { deviceId, method: 'ping' }));
    const { correlationId } = sent;
    const done = await unary<RpcRecord>('GetRpc', create(GetRpcRequestSchema, { correlationId, waitSeconds: 10 }));
    if (done.status !== RpcRecord_Status.successful) throw new Error('a command was not carried out');
    milliseconds.push(performance.now() - begun);
  }
  stream.cancel();
  client.close();
  return milliseconds;
}

async function measureRows({ databaseUrl }: Environment): Promise<number[]> {
  const [sender, device] = [new pg.Client(databaseUrl), new pg.Client(databaseUrl)];
  await Promise.all([sender.connect(), device.connect()]);
  try {
    await sender.query(`CREATE TABLE bench_commands (id int8 PRIMARY KEY, done boolean NOT NULL DEFAULT false)`);
    await device.query('LISTEN bench_commands');
    await sender.query('LISTEN bench_responses');
    device.on('notification', ({ payload }) => {
      void device.query(
        `WITH done AS (UPDATE bench_commands SET done = true WHERE id = $1 RETURNING id)
         SELECT pg_notify('bench_responses', id::text) FROM done`,
        [payload],
      );
    });
    const milliseconds: number[] = [];
    for (let count = 0; count < commands; count += 1) {
      const begun = performance.now();
      const responded = once(sender, 'notification');
      await sender.query(
        `WITH sent AS (INSERT INTO bench_commands (id) VALUES ($1) RETURNING id)
         SELECT pg_notify('bench_commands', id::text) FROM sent`,
        [count],
      );
      await responded;
      milliseconds.push(performance.now() - begun);
    }
    return milliseconds;
  } finally {
    await Promise.all([sender.end(), device.end()]);
  }
}
