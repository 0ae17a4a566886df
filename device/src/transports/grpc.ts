// gRPC: telemetry and commands on one HTTP/2 connection, commands by the stream `DeviceLinkService.Connect`.
import {
  create,
  type DescMessage,
  fromBinary,
  type JsonObject as ProtoJsonObject,
  type MessageInitShape,
  type MessageShape,
  toBinary,
  toJson,
} from '@bufbuild/protobuf';
import { Client, type ClientDuplexStream, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { DeviceError, statusNames, unavailable } from '../errors.ts';
import { EmptySchema } from '../generated/kellet/v1/common_pb.ts';
import {
  AttributesSchema,
  ConnectGatewayDeviceRequestSchema,
  ConnectGatewayDeviceResponseSchema,
  type ConnectRequest,
  ConnectRequestSchema,
  type ConnectResponse,
  ConnectResponseSchema,
  DisconnectGatewayDeviceRequestSchema,
  GetAttributesRequestSchema,
  RpcRecordSchema,
  UpdateAttributesRequestSchema,
} from '../generated/kellet/v1/device_link_pb.ts';
import {
  AssignedPackageSchema,
  ChunkSchema,
  GetAssignedPackageRequestSchema,
  GetChunkRequestSchema,
  OtaReport_Status,
  ReportOtaRequestSchema,
  ReportOtaResponseSchema,
} from '../generated/kellet/v1/ota_pb.ts';
import { ClaimDeviceRequestSchema, ClaimDeviceResponseSchema } from '../generated/kellet/v1/provisioning_pb.ts';
import { IngestRequestSchema, IngestResponseSchema } from '../generated/kellet/v1/telemetry_pb.ts';
import type {
  AssignedPackage,
  Attributes,
  Child,
  Claim,
  Command,
  Identity,
  Ingested,
  JsonObject,
  OtaReport,
  Point,
  Response,
} from '../messages.ts';
import { Children } from './children.ts';
import { callMilliseconds, type Listener, type Protocol, type TlsOptions, type Transport } from './transport.ts';

/** Settings of the gRPC protocol. */
export interface GrpcOptions {
  tls?: TlsOptions;
  /** Connections that the devices of this process share. */
  connections?: number;
}

const byProtoName = { useProtoFieldName: true, alwaysEmitImplicit: true } as const;
const bytes = (text: string | undefined): Buffer | null => (text === undefined ? null : Buffer.from(text));

/** Returns the platform's error of a failed call. */
function callError(error: ServiceError): DeviceError {
  const retryAfter = Number(error.metadata?.get('retry-after')[0] ?? Number.NaN);
  const retryAfterSeconds = Number.isFinite(retryAfter) ? retryAfter : undefined;
  return new DeviceError(statusNames[error.code] ?? 'UNKNOWN', error.details, { retryAfterSeconds, cause: error });
}

/** gRPC at `grpc://host:port`, or `grpcs://host:port` with TLS. */
export class GrpcProtocol implements Protocol {
  private readonly clients: readonly Client[];
  private next = 0;

  constructor(url: string, { tls = {}, connections = 1 }: GrpcOptions = {}) {
    const { protocol, host } = new URL(url);
    const isSecure = protocol === 'grpcs:';
    const credential = isSecure
      ? credentials.createSsl(bytes(tls.ca), bytes(tls.key), bytes(tls.cert))
      : credentials.createInsecure();
    this.clients = Array.from(
      { length: connections },
      () =>
        new Client(host, credential, {
          // Finds a lost connection while nothing is sent.
          'grpc.keepalive_time_ms': 60_000,
          'grpc.keepalive_timeout_ms': 20_000,
          // Channels of one process share a connection otherwise.
          'grpc.use_local_subchannel_pool': 1,
        }),
    );
  }

  async claim(claim: Claim, signal: AbortSignal): Promise<Identity> {
    const [client] = this.clients;
    const { device_id, api_key } = await unary(
      client!,
      { path: 'ProvisioningService/ClaimDevice', input: ClaimDeviceRequestSchema, output: ClaimDeviceResponseSchema },
      { provisionKey: claim.provision_key, deviceName: claim.device_name ?? '', hardwareId: claim.hardware_id },
      new Metadata(),
      signal,
    ).then(({ deviceId, apiKey }) => ({ device_id: deviceId, api_key: apiKey }));
    return { device_id, api_key };
  }

  open(identity: Identity): Transport {
    return new GrpcTransport(this.clients[this.next++ % this.clients.length]!, identity);
  }

  close(): Promise<void> {
    for (const client of this.clients) client.close();
    return Promise.resolve();
  }
}

interface Method<Input extends DescMessage, Output extends DescMessage> {
  path: string;
  input: Input;
  output: Output;
}

/** Makes a call. Throws the platform's error. */
function unary<Input extends DescMessage, Output extends DescMessage>(
  client: Client,
  { path, input, output }: Method<Input, Output>,
  request: MessageInitShape<Input>,
  metadata: Metadata,
  signal: AbortSignal,
): Promise<MessageShape<Output>> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason as Error);
    const call = client.makeUnaryRequest<MessageShape<Input>, MessageShape<Output>>(
      `/kellet.v1.${path}`,
      (message) => Buffer.from(toBinary(input, message)),
      (data) => fromBinary(output, data),
      create(input, request),
      metadata,
      { deadline: Date.now() + callMilliseconds },
      (error, response) => {
        signal.removeEventListener('abort', cancel);
        if (signal.aborted) reject(signal.reason as Error);
        else if (error) reject(callError(error));
        else resolve(response!);
      },
    );
    const cancel = (): void => call.cancel();
    signal.addEventListener('abort', cancel);
  });
}

class GrpcTransport implements Transport {
  protected readonly deviceId: string;
  private readonly client: Client;
  private readonly identity: Identity;
  private readonly metadata = new Metadata();
  private readonly children = new Children();
  private followsChildren = false;
  private stream: ClientDuplexStream<ConnectRequest, ConnectResponse> | undefined;
  private readonly waiting = new Map<string, (acknowledged: { code: string; message: string }) => void>();

  constructor(client: Client, identity: Identity) {
    this.client = client;
    this.identity = identity;
    this.deviceId = identity.device_id;
    this.metadata.set('x-api-key', identity.api_key);
  }

  async send(points: readonly Point[], requestKey: string, signal: AbortSignal): Promise<Ingested> {
    const metadata = this.metadata.clone();
    metadata.set('idempotency-key', requestKey);
    const { accepted, rejected, errors } = await unary(
      this.client,
      { path: 'TelemetryService/Ingest', input: IngestRequestSchema, output: IngestResponseSchema },
      {
        points: points.map(({ timestamp, numeric_values, string_values }) => ({
          ...{ deviceId: this.deviceId, timestamp },
          ...{ numericValues: numeric_values ?? {}, stringValues: string_values ?? {} },
        })),
      },
      metadata,
      signal,
    );
    return { accepted, rejected, errors };
  }

  listen(listener: Listener, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return resolve();
      const stream = this.client.makeBidiStreamRequest<ConnectRequest, ConnectResponse>(
        '/kellet.v1.DeviceLinkService/Connect',
        (message) => Buffer.from(toBinary(ConnectRequestSchema, message)),
        (data) => fromBinary(ConnectResponseSchema, data),
        this.metadata,
      );
      this.stream = stream;
      let isReady = false;
      const cancel = (): void => stream.cancel();
      signal.addEventListener('abort', cancel);
      const ended = (error: Error): void => {
        signal.removeEventListener('abort', cancel);
        if (this.stream === stream) this.stream = undefined;
        for (const settle of this.waiting.values()) settle({ code: 'UNAVAILABLE', message: 'the stream has ended' });
        this.waiting.clear();
        this.children.lost(error);
        if (signal.aborted) resolve();
        else reject(error);
      };
      stream.on('data', ({ event }: ConnectResponse) => {
        if (event.case === 'ready') {
          if (!isReady) listener.onReady();
          isReady = true;
          if (this.followsChildren) this.children.opened();
        } else if (event.case === 'command') {
          const command = toJson(RpcRecordSchema, event.value, byProtoName) as ProtoJsonObject & Command;
          if (event.value.deviceId === this.deviceId) listener.onCommand(command);
          else this.children.take(event.value.deviceId, command);
        } else if (event.case === 'acknowledgement') {
          const { correlationId, code, message } = event.value;
          this.waiting.get(correlationId)?.({ code, message });
          this.waiting.delete(correlationId);
        }
      });
      stream.on('error', (error: ServiceError) => ended(callError(error)));
      stream.on('end', () => ended(unavailable('the stream has ended')));
      this.followsChildren = this.children.any;
      this.sayHello(stream);
    });
  }

  /** Receives the commands of a child on the stream of this gateway. */
  listenFor(deviceId: string, listener: Listener, signal: AbortSignal): Promise<void> {
    const listening = this.children.listen(deviceId, listener, signal);
    if (!this.followsChildren && this.stream) {
      this.followsChildren = true;
      this.sayHello(this.stream);
    }
    return listening;
  }

  /** Opens the stream, or subscribes to the commands of children on one that is open. The platform confirms both. */
  private sayHello(stream: ClientDuplexStream<ConnectRequest, ConnectResponse>): void {
    const value = { followChildren: this.followsChildren };
    stream.write(create(ConnectRequestSchema, { event: { case: 'hello', value } }));
  }

  async connectChild(child: Child, signal: AbortSignal): Promise<string> {
    const { deviceId } = await unary(
      this.client,
      {
        path: 'DeviceLinkService/ConnectGatewayDevice',
        input: ConnectGatewayDeviceRequestSchema,
        output: ConnectGatewayDeviceResponseSchema,
      },
      {
        ...{ gatewayDeviceId: this.deviceId, hardwareId: child.hardware_id },
        ...{ deviceName: child.device_name ?? '', profileId: child.profile_id ?? '' },
      },
      this.metadata,
      signal,
    );
    return deviceId;
  }

  async disconnectChild(deviceId: string, signal: AbortSignal): Promise<void> {
    await unary(
      this.client,
      {
        path: 'DeviceLinkService/DisconnectGatewayDevice',
        input: DisconnectGatewayDeviceRequestSchema,
        output: EmptySchema,
      },
      { gatewayDeviceId: this.deviceId, deviceId },
      this.metadata,
      signal,
    );
  }

  child(deviceId: string): Transport {
    return new GrpcChild(this.client, { device_id: deviceId, api_key: this.identity.api_key }, this);
  }

  respond(correlationId: string, response: Response, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const stream = this.stream;
      if (!stream) return reject(unavailable('the stream is not open'));
      const settle = ({ code, message }: { code: string; message: string }): void => {
        signal.removeEventListener('abort', stop);
        clearTimeout(timer);
        if (code === '') resolve();
        else reject(new DeviceError(code, message));
      };
      const stop = (): void => settle({ code: 'CANCELLED', message: 'stopped' });
      const timer = setTimeout(settle, callMilliseconds, { code: 'UNAVAILABLE', message: 'no acknowledgement' });
      signal.addEventListener('abort', stop);
      this.waiting.set(correlationId, settle);
      const { success, response: value, error = '' } = response;
      const message = { correlationId, success, error, ...(value && { response: value as ProtoJsonObject }) };
      stream.write(create(ConnectRequestSchema, { event: { case: 'response', value: message } }));
    });
  }

  async getAttributes(signal: AbortSignal): Promise<Attributes> {
    const attributes = await unary(
      this.client,
      { path: 'DeviceLinkService/GetAttributes', input: GetAttributesRequestSchema, output: AttributesSchema },
      { deviceId: this.deviceId },
      this.metadata,
      signal,
    );
    return toJson(AttributesSchema, attributes, byProtoName) as unknown as Attributes;
  }

  async setAttributes(changes: JsonObject, signal: AbortSignal): Promise<void> {
    await unary(
      this.client,
      { path: 'DeviceLinkService/UpdateAttributes', input: UpdateAttributesRequestSchema, output: AttributesSchema },
      { deviceId: this.deviceId, client: changes as ProtoJsonObject },
      this.metadata,
      signal,
    );
  }

  async assignedPackage(signal: AbortSignal): Promise<AssignedPackage | undefined> {
    try {
      const assigned = await unary(
        this.client,
        {
          path: 'OtaService/GetAssignedPackage',
          input: GetAssignedPackageRequestSchema,
          output: AssignedPackageSchema,
        },
        { deviceId: this.deviceId },
        this.metadata,
        signal,
      );
      return toJson(AssignedPackageSchema, assigned, byProtoName) as unknown as AssignedPackage;
    } catch (error) {
      if (error instanceof DeviceError && error.code === 'NOT_FOUND') return undefined;
      throw error;
    }
  }

  async chunk(packageId: string, offset: number, length: number, signal: AbortSignal): Promise<Uint8Array> {
    const { data } = await unary(
      this.client,
      { path: 'OtaService/GetChunk', input: GetChunkRequestSchema, output: ChunkSchema },
      { deviceId: this.deviceId, packageId, offset, length },
      this.metadata,
      signal,
    );
    return data;
  }

  async report(report: OtaReport, signal: AbortSignal): Promise<void> {
    await unary(
      this.client,
      { path: 'OtaService/ReportOta', input: ReportOtaRequestSchema, output: ReportOtaResponseSchema },
      {
        deviceId: this.deviceId,
        report: {
          ...{ deviceId: this.deviceId, rolloutId: report.rollout_id, error: report.error ?? '' },
          firmwareVersion: report.firmware_version ?? '',
          ...(report.status && { status: OtaReport_Status[report.status] }),
          ...(report.progress_percent !== undefined && { progressPercent: report.progress_percent }),
        },
      },
      this.metadata,
      signal,
    );
  }

  close(): Promise<void> {
    this.stream?.cancel();
    return Promise.resolve();
  }
}

/** The calls of a child: its own are made with the gateway's key, its commands come on the gateway's stream. */
class GrpcChild extends GrpcTransport {
  private readonly gateway: GrpcTransport;

  constructor(client: Client, identity: Identity, gateway: GrpcTransport) {
    super(client, identity);
    this.gateway = gateway;
  }

  override listen(listener: Listener, signal: AbortSignal): Promise<void> {
    return this.gateway.listenFor(this.deviceId, listener, signal);
  }

  override respond(correlationId: string, response: Response, signal: AbortSignal): Promise<void> {
    return this.gateway.respond(correlationId, response, signal);
  }
}
