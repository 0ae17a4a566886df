// For tests: kellet-apiserver processes on a database of their own, and callers of both public ports.
import { create, type DescMethod, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { Client, type ClientDuplexStream, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import {
  type ConnectRequest,
  ConnectRequestSchema,
  type ConnectResponse,
  DeviceLinkService,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { mintKey } from '../../auth/credentials/api-key-format.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { type TestProcess, TestProcesses } from '../../testing/test-process.ts';

/** A device with its key; empty if it has a certificate. */
export interface TestDevice {
  readonly deviceId: string;
  readonly key: string;
}

/** The body of a response, and its status. */
export type Result<T = Record<string, unknown>> = T & { readonly http: number; code?: string; message?: string };

export const tenant = 'acme';
export const stranger = 'other';

/** The processes, and an operator of each of the two tenants. */
export class TestLink {
  readonly test: TestDatabase;
  readonly processes: TestProcesses;
  readonly operators: Readonly<Record<string, string>>;
  private running: TestProcess | undefined;
  private made = 0;
  private readonly clients: Client[] = [];

  private constructor(test: TestDatabase, processes: TestProcesses, operators: Readonly<Record<string, string>>) {
    this.test = test;
    this.processes = processes;
    this.operators = operators;
  }

  /** Starts one process. */
  static async start(settings: Record<string, string> = {}): Promise<TestLink> {
    const test = await createTestDatabase();
    const operators: Record<string, string> = {};
    for (const tenantId of [tenant, stranger]) {
      await insertTenant(test.database, tenantId);
      await test.database.system((tx) =>
        tx.query('UPDATE tenants SET rate_limit_per_minute = 1000000 WHERE tenant_id = $1', [tenantId]),
      );
      operators[tenantId] = await serviceKey(test, tenantId);
    }
    const link = new TestLink(test, await TestProcesses.create(test.url), operators);
    link.running = await link.processes.start(settings);
    return link;
  }

  /** The process that was started with the link. */
  get process(): TestProcess {
    return this.running!;
  }

  async stop(): Promise<void> {
    for (const client of this.clients) client.close();
    await this.processes.kill();
    await this.processes.remove();
    await this.test.drop();
  }

  /** Calls a route below /api/v1. */
  async call<T = Record<string, unknown>>(
    key: string,
    method: string,
    path: string,
    body?: unknown,
    { process = this.process }: { process?: TestProcess } = {},
  ): Promise<Result<T>> {
    const response = await fetch(`http://127.0.0.1:${process.ports.restPort}/api/v1/${path}`, {
      method,
      headers: { 'x-api-key': key, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { ...((await response.json()) as Result<T>), http: response.status };
  }

  /** Calls as the operator of the tenant. */
  operate<T = Record<string, unknown>>(method: string, path: string, body?: unknown): Promise<Result<T>> {
    return this.call<T>(this.operators[tenant]!, method, path, body);
  }

  /** Registers a device. */
  async device(tenantId = tenant): Promise<TestDevice> {
    this.made += 1;
    const body = { name: `device ${this.made}`, hardware_id: `hardware-${this.made}` };
    const made = await this.call<{ device: { device_id: string }; api_key: string }>(
      this.operators[tenantId]!,
      'POST',
      'devices',
      body,
    );
    if (made.http !== 200) throw new Error(`no device was created: ${made.code} ${made.message}`);
    return { deviceId: made.device.device_id, key: made.api_key };
  }

  /** Sends a command, and returns its id. */
  async send(deviceId: string, body: object = {}): Promise<string> {
    const command = { method: 'reboot', persistent: true, ...body };
    const sent = await this.operate<{ correlation_id: string }>('POST', `devices/${deviceId}/rpc`, command);
    return sent.correlation_id;
  }

  /** Returns a gRPC client with a connection of its own. */
  client(process = this.process): Client {
    const client = new Client(`127.0.0.1:${process.ports.grpcPort}`, credentials.createInsecure(), {
      'grpc.use_local_subchannel_pool': 1,
    });
    this.clients.push(client);
    return client;
  }

  /** Calls a unary method over gRPC. */
  unary<M extends DescMethod>(
    key: string,
    method: M,
    request: MessageInitShape<M['input']>,
    client = this.client(),
  ): Promise<MessageShape<M['output']>> {
    const { path, requestSerialize, responseDeserialize } = grpcService(method.parent)[method.name]!;
    return new Promise((resolve, reject) => {
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        create(method.input, request),
        metadataOf(key),
        {},
        (error, response) => (error ? reject(error) : resolve(response as MessageShape<M['output']>)),
      );
    });
  }

  /** Opens a stream, and sends `hello`. */
  stream(
    device: TestDevice,
    options: { process?: TestProcess; children?: string[]; client?: Client } = {},
  ): TestStream {
    const stream = new TestStream(options.client ?? this.client(options.process), device.key);
    stream.write({ event: { case: 'hello', value: { deviceIds: options.children ?? [] } } });
    return stream;
  }

  /** Lets time pass for a command. */
  async setCommand(correlationId: string, columns: string): Promise<void> {
    await this.test.database.system((tx) =>
      tx.query(`UPDATE device_commands SET ${columns} WHERE correlation_id = $1`, [correlationId]),
    );
  }

  /** Returns columns of a device's row. */
  async row<T extends Record<string, unknown>>(deviceId: string, columns: string): Promise<T> {
    const { rows } = await this.test.database.system((tx) =>
      tx.query<T>(`SELECT ${columns} FROM devices WHERE device_id = $1`, [deviceId]),
    );
    return rows[0]!;
  }
}

const metadataOf = (key: string): Metadata => {
  const metadata = new Metadata();
  if (key !== '') metadata.set('x-api-key', key);
  return metadata;
};

/** Inserts the key of a service that may do everything with devices. */
async function serviceKey(test: TestDatabase, tenantId: string): Promise<string> {
  const { key, hash, prefix, last4 } = mintKey();
  const scopes = ['devices', 'rpc', 'telemetry', 'keys'].flatMap((area) => [`${area}:read`, `${area}:write`]);
  await test.database.system((tx) =>
    tx.query(
      `INSERT INTO api_keys (key_id, tenant_id, name, key_hash, prefix, last4, scopes) VALUES ($1, $2, 't', $3, $4, $5, $6)`,
      [newId(), tenantId, hash, prefix, last4, scopes],
    ),
  );
  return key;
}

type Event = ConnectResponse['event'];

/** A device's end of the stream Connect. */
export class TestStream {
  /** What has arrived. */
  readonly events: Event[] = [];
  /** How the stream ended. */
  ended: { readonly code: number; readonly details: string } | undefined;
  readonly call: ClientDuplexStream<ConnectRequest, ConnectResponse>;

  constructor(client: Client, key: string) {
    const { path, requestSerialize, responseDeserialize } = grpcService(DeviceLinkService)['Connect']!;
    this.call = client.makeBidiStreamRequest(
      path,
      requestSerialize as (message: ConnectRequest) => Buffer,
      responseDeserialize as (bytes: Buffer) => ConnectResponse,
      metadataOf(key),
      {},
    );
    this.call.on('data', ({ event }: ConnectResponse) => this.events.push(event));
    this.call.on('error', ({ code, details }: ServiceError) => (this.ended = { code, details }));
    this.call.on(
      'status',
      ({ code, details }: { code: number; details: string }) => (this.ended ??= { code, details }),
    );
  }

  write(message: MessageInitShape<typeof ConnectRequestSchema>): void {
    this.call.write(create(ConnectRequestSchema, message));
  }

  respond(correlationId: string, success = true, response: Record<string, string> = {}): void {
    const error = success ? '' : 'no';
    this.write({ event: { case: 'response', value: { correlationId, success, response, error } } });
  }

  heartbeat(): void {
    this.write({ event: { case: 'heartbeat', value: {} } });
  }

  /** Waits until the platform has accepted the stream. */
  async opened(): Promise<this> {
    await eventually(() => {
      if (this.ended) throw new Error(`the stream has ended: ${JSON.stringify(this.ended)}`);
      return this.events.some((event) => event.case === 'ready');
    });
    return this;
  }

  /** The commands that have arrived, as [id, attempts]. */
  get commands(): [string, number][] {
    return this.events.flatMap((event) =>
      event.case === 'command' ? [[event.value.correlationId, event.value.attempts] as [string, number]] : [],
    );
  }

  /** The acknowledgements that have arrived. */
  get acknowledgements(): { correlationId: string; code: string }[] {
    return this.events.flatMap((event) =>
      event.case === 'acknowledgement' ? [{ correlationId: event.value.correlationId, code: event.value.code }] : [],
    );
  }

  /** Waits for a number of commands. */
  async received(count: number, milliseconds = 5000): Promise<[string, number][]> {
    await eventually(() => this.commands.length >= count, milliseconds);
    return this.commands;
  }

  /** Waits for the end, and returns its code. */
  async code(milliseconds = 5000): Promise<number> {
    await eventually(() => this.ended !== undefined, milliseconds);
    return this.ended!.code;
  }

  /** Cuts the stream, as a lost connection does. */
  cut(): void {
    this.call.cancel();
  }
}
