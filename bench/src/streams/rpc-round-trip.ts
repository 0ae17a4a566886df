// rpc-round-trip: from sending a command to its response, by a device on a stream. Compared with the least that PostgreSQL
// needs for it: a row inserted and announced, updated and announced again.
import { once } from 'node:events';
import { create } from '@bufbuild/protobuf';
import { Client, type ClientDuplexStream, credentials, Metadata } from '@grpc/grpc-js';
import {
  type ConnectRequest,
  ConnectRequestSchema,
  type ConnectResponse,
  DeviceLinkService,
  GetRpcRequestSchema,
  type RpcRecord,
  RpcRecord_Status,
  SendRpcRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import pg from 'pg';
import { grpcService } from '../../../apiserver/src/platform/grpc/grpc-service.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { type Benchmark, median } from '../harness.ts';
import { mintKeys } from './device-keys.ts';

const service = grpcService(DeviceLinkService);
/** Of a round. */
const commands = 300;

/** The benchmark. */
export const rpcRoundTrip: Benchmark = {
  name: 'rpc-round-trip',
  unit: 'ms',
  baseline: 'PostgreSQL alone',
  rounds: 5,
  prepare: async () => {
    const environment = await startEnvironment((line) => console.error(line), 10);
    const link = await Link.open(environment);
    const bare = await BareCommands.open(environment);
    let [ours, baseline]: [number[], number[]] = [[], []];
    return {
      baseline: async () => median((baseline = await bare.run())),
      ours: async () => median((ours = await link.run())),
      remarks: () => ({
        'p99 ms': percentile(ours, 0.99),
        'PostgreSQL alone p99 ms': percentile(baseline, 0.99),
      }),
      close: async () => {
        link.close();
        await bare.close();
        await environment.close();
      },
    };
  },
};

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(values.length * share) - 1]!;

const metadataOf = (key: string): Metadata => {
  const metadata = new Metadata();
  metadata.set('x-api-key', key);
  return metadata;
};

/** A caller, and a device on a stream that responds to each command. */
class Link {
  private readonly environment: Environment;
  private readonly client: Client;
  private readonly stream: ClientDuplexStream<ConnectRequest, ConnectResponse>;

  private constructor(
    environment: Environment,
    client: Client,
    stream: ClientDuplexStream<ConnectRequest, ConnectResponse>,
  ) {
    this.environment = environment;
    this.client = client;
    this.stream = stream;
  }

  static async open(environment: Environment): Promise<Link> {
    const [key] = await mintKeys(environment);
    const client = new Client(environment.grpc, credentials.createInsecure());
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
    return new Link(environment, client, stream);
  }

  /** Returns the milliseconds of each command. */
  async run(): Promise<number[]> {
    const deviceId = this.environment.deviceIds[0]!;
    const milliseconds: number[] = [];
    for (let count = 0; count < commands; count += 1) {
      const begun = performance.now();
      const request = create(SendRpcRequestSchema, { deviceId, method: 'ping' });
      const { correlationId } = await this.call<RpcRecord>('SendRpc', request);
      const wait = create(GetRpcRequestSchema, { correlationId, waitSeconds: 10 });
      const done = await this.call<RpcRecord>('GetRpc', wait);
      if (done.status !== RpcRecord_Status.successful) throw new Error('a command was not carried out');
      milliseconds.push(performance.now() - begun);
    }
    return milliseconds;
  }

  private call<T>(name: string, request: unknown): Promise<T> {
    const { path, requestSerialize, responseDeserialize } = service[name]!;
    const metadata = metadataOf(this.environment.apiKey);
    return new Promise((resolve, reject) => {
      this.client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        {},
        (error, response) => (error ? reject(error) : resolve(response as T)),
      );
    });
  }

  close(): void {
    this.stream.cancel();
    this.client.close();
  }
}

/** The least that PostgreSQL needs for a command. */
class BareCommands {
  private readonly sender: pg.Client;
  private readonly device: pg.Client;
  private lastId = 0;

  private constructor(sender: pg.Client, device: pg.Client) {
    this.sender = sender;
    this.device = device;
  }

  static async open({ databaseUrl }: Environment): Promise<BareCommands> {
    const [sender, device] = [new pg.Client(databaseUrl), new pg.Client(databaseUrl)];
    await Promise.all([sender.connect(), device.connect()]);
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
    return new BareCommands(sender, device);
  }

  /** Returns the milliseconds of each command. */
  async run(): Promise<number[]> {
    const milliseconds: number[] = [];
    for (let count = 0; count < commands; count += 1) {
      const begun = performance.now();
      const responded = once(this.sender, 'notification');
      await this.sender.query(
        `WITH sent AS (INSERT INTO bench_commands (id) VALUES ($1) RETURNING id)
         SELECT pg_notify('bench_commands', id::text) FROM sent`,
        [(this.lastId += 1)],
      );
      await responded;
      milliseconds.push(performance.now() - begun);
    }
    return milliseconds;
  }

  async close(): Promise<void> {
    await Promise.all([this.sender.end(), this.device.end()]);
  }
}
