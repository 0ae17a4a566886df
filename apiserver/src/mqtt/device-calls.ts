// What a device publishes, as calls of the contract: decoded, authorised and executed as the same calls on REST.
import { create, type DescMethod, type Message, type MessageShape } from '@bufbuild/protobuf';
import { DeviceLinkService, GetAttributesRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';
import {
  GetAssignedPackageRequestSchema,
  GetChunkRequestSchema,
  OtaService,
  type ReportOtaRequest,
  ReportOtaRequestSchema,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { type IngestResponse, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { authorize, isPublic } from '../gateway/admission/authorize.ts';
import type { Entrance } from '../gateway/gateway.ts';
import { endCall } from '../gateway/observability/call-trace.ts';
import type { Route } from '../gateway/transcoding/routes.ts';
import { decodeExactly, decodeRequest, encodeResponse } from '../gateway/transcoding/transcode.ts';
import type { Clock } from '../platform/clock.ts';
import { invalidArgument, KelletError, permissionDenied, toKelletError } from '../platform/errors.ts';
import { newRequestId } from '../platform/ids.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { beginTrace, inTrace, rpcAttributes } from '../platform/observability/tracing.ts';
import type { CallContext, Caller } from '../platform/rpc.ts';
import { decodeTelemetry, jsonObject } from './telemetry-payload.ts';
import { type Action, topics } from './topics.ts';

/** The publisher of a message. */
export interface Publisher {
  readonly caller: Caller;
  readonly address: string;
  /** Aborts when the connection ends. */
  readonly signal: AbortSignal;
}

/** A message of a device. */
export interface Published {
  readonly action: Action;
  readonly payload: Buffer;
  /** Of MQTT 5; empty if there is none. */
  readonly contentType: string;
}

/** A message to the device. */
export interface ResponseMessage {
  readonly topic: string;
  readonly payload: string | Uint8Array;
}

/** What came of a message. */
export interface Outcome {
  readonly response?: ResponseMessage;
  /** Why it is refused, in whole or in part. */
  readonly error?: KelletError;
  /** Whether nothing of it was accepted because of its content. */
  readonly isRefused: boolean;
  /** Whether that is because each of its points was rejected individually. */
  readonly isEachRejected: boolean;
  /** Must be called once the response is written. */
  readonly done: () => void;
}

/** Makes the calls. */
export class DeviceCalls {
  private readonly entrance: Entrance;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly routes: ReadonlyMap<DescMethod, Route>;

  constructor(entrance: Entrance, clock: Clock, logger: Logger) {
    this.entrance = entrance;
    this.clock = clock;
    this.logger = logger;
    this.routes = new Map(entrance.routes.routes.map((route) => [route.method, route]));
  }

  /**
   * Carries out what a device has published. Errors of the content are part of the outcome. Throws UNAVAILABLE or
   * DEADLINE_EXCEEDED if the message must be sent again.
   */
  async take(published: Published, publisher: Publisher): Promise<Outcome> {
    const { action } = published;
    const call = new Call(this.entrance, this.routes, publisher, {
      method: methodOf[action.kind],
      bytes: published.payload.length,
    });
    try {
      const outcome = await inTrace(call.trace, () => this.run(published, publisher, call));
      call.end(outcome.error && outcome.isRefused ? outcome.error.code : 'OK');
      return { ...outcome, done: () => call.done() };
    } catch (thrown) {
      const error = toKelletError(thrown);
      call.end(error.code);
      const mustRepeat = error.code === 'UNAVAILABLE' || error.code === 'DEADLINE_EXCEEDED';
      if (mustRepeat && action.kind !== 'claim') throw error;
      if (error.code === 'INTERNAL') {
        this.logger.error({ err: error.cause ?? error, request_id: call.requestId }, 'call failed');
      }
      const done = (): void => call.done();
      const refused = { error, isRefused: true, isEachRejected: false, done };
      if (action.kind !== 'claim') return refused;
      const refusal = JSON.stringify({ error: { code: error.code, message: error.message } });
      return { ...refused, response: { topic: topics.claimResponse, payload: refusal } };
    }
  }

  private async run(
    { action, payload, contentType }: Published,
    { caller }: Publisher,
    call: Call,
  ): Promise<Omit<Outcome, 'done'>> {
    const { deviceId } = caller;
    switch (action.kind) {
      case 'telemetry': {
        const ofDevice = action.deviceId === '' ? deviceId : action.deviceId.toLowerCase();
        await this.checkChild(caller, ofDevice);
        const defaults = { deviceId: ofDevice, now: this.clock.now() };
        const method = TelemetryService.method.ingest;
        const decoding = { route: this.route(method), reader: this.entrance.readers.get(method) };
        return ingested(await call.make(method, decodeTelemetry(decoding, payload, contentType, defaults)));
      }
      case 'response': {
        await this.checkChild(caller, action.deviceId === '' ? deviceId : action.deviceId.toLowerCase());
        await call.make(
          DeviceLinkService.method.respondRpc,
          this.decode(DeviceLinkService.method.respondRpc, payload, { correlation_id: action.correlationId }),
        );
        return accepted();
      }
      case 'attributes': {
        const { method } = DeviceLinkService;
        const body = Buffer.from(JSON.stringify({ client: jsonObject(payload) }));
        await call.make(method.updateAttributes, this.decode(method.updateAttributes, body, { device_id: deviceId }));
        return accepted();
      }
      case 'getAttributes': {
        emptyRequest(payload);
        const method = DeviceLinkService.method.getAttributes;
        const attributes = await call.make(method, create(GetAttributesRequestSchema, { deviceId }));
        return accepted(topics.attributesResponse(action.requestId), this.encode(method, attributes));
      }
      case 'getUpdate': {
        emptyRequest(payload);
        const method = OtaService.method.getAssignedPackage;
        const topic = topics.updateResponse(action.requestId);
        try {
          const update = await call.make(method, create(GetAssignedPackageRequestSchema, { deviceId }));
          return accepted(topic, this.encode(method, update));
        } catch (error) {
          if (!(error instanceof KelletError) || error.code !== 'NOT_FOUND') throw error;
          return accepted(topic, JSON.stringify({ package_id: '' }));
        }
      }
      case 'getChunk': {
        const { packageId } = action;
        const offset = wholeNumber('offset', action.offset);
        const length = wholeNumber('length', action.length);
        const request = create(GetChunkRequestSchema, { deviceId, packageId, offset, length });
        const { data } = await call.make(OtaService.method.getChunk, request);
        return accepted(topics.updateData(packageId, offset), data);
      }
      case 'report': {
        const method = OtaService.method.reportOta;
        const request: ReportOtaRequest = this.decode(method, payload, { device_id: deviceId });
        const reported = request.report?.deviceId || deviceId;
        await this.checkChild(caller, reported);
        const report = request.report && { ...request.report, deviceId: reported };
        await call.make(method, create(ReportOtaRequestSchema, { deviceId: reported, ...(report && { report }) }));
        return accepted();
      }
      case 'claim': {
        const method = ProvisioningService.method.claimDevice;
        return accepted(
          topics.claimResponse,
          this.encode(method, await call.make(method, this.decode(method, payload, {}))),
        );
      }
    }
  }

  /** Throws PERMISSION_DENIED unless the device is the caller's own or one of its children. */
  private async checkChild(caller: Caller, deviceId: string): Promise<void> {
    if (deviceId === caller.deviceId) return;
    if (await this.entrance.isGatewayOf(caller.tenantId, caller.deviceId, deviceId)) return;
    throw permissionDenied('a device may name only itself and its children');
  }

  private route(method: DescMethod): Route {
    return this.routes.get(method)!;
  }

  private decode<M extends DescMethod>(
    method: M,
    body: Buffer,
    path: Readonly<Record<string, string>>,
  ): MessageShape<M['input']> {
    const match = { route: this.route(method), variables: new Map(Object.entries(path)) };
    if (body.length === 0) throw invalidArgument('the payload must be a JSON object');
    const request = { query: '', body, contentType: '' };
    // A PATCH takes the fast path only without a mask, so it is decoded exactly.
    return (
      match.route.verb === 'PATCH' ? decodeExactly(match, request) : decodeRequest(match, request)
    ) as MessageShape<M['input']>;
  }

  private encode(method: DescMethod, message: Message): string | Uint8Array {
    return encodeResponse(this.route(method), message).body;
  }
}

/** The method whose metrics, log and authorisation count for an action. */
const methodOf = {
  telemetry: TelemetryService.method.ingest,
  response: DeviceLinkService.method.respondRpc,
  attributes: DeviceLinkService.method.updateAttributes,
  getAttributes: DeviceLinkService.method.getAttributes,
  getUpdate: OtaService.method.getAssignedPackage,
  getChunk: OtaService.method.getChunk,
  report: OtaService.method.reportOta,
  claim: ProvisioningService.method.claimDevice,
} as const satisfies Record<Action['kind'], DescMethod>;

/** The full names of these methods. */
const nameOf: ReadonlyMap<DescMethod, string> = new Map(
  Object.values(methodOf).map((method) => [method, `${method.parent.typeName}/${method.name}`]),
);

/** Handlers see no metadata of a message. */
const noMetadata: ReadonlyMap<string, string> = new Map();

/** One call: its context, log entry, trace and metrics. */
class Call {
  readonly requestId = newRequestId();
  readonly trace;
  private readonly entrance: Entrance;
  private readonly routes: ReadonlyMap<DescMethod, Route>;
  private readonly method: DescMethod;
  private readonly publisher: Publisher;
  private readonly entry;
  private readonly afterwards: (() => void)[] = [];

  constructor(
    entrance: Entrance,
    routes: ReadonlyMap<DescMethod, Route>,
    publisher: Publisher,
    { method, bytes }: { readonly method: DescMethod; readonly bytes: number },
  ) {
    this.entrance = entrance;
    this.routes = routes;
    this.method = method;
    this.publisher = publisher;
    const name = nameOf.get(method)!;
    this.trace = beginTrace(name, 'SERVER', undefined, () => rpcAttributes(method));
    this.trace.requestId = this.requestId;
    this.entry = entrance.accessLog.begin('mqtt', 'PUBLISH', this.requestId, undefined);
    this.entry.route = name;
    this.entry.address = publisher.address;
    this.entry.caller = publisher.caller;
    this.entry.bytesIn = bytes;
  }

  /** Authorises and makes the call. */
  async make<M extends DescMethod>(method: M, request: MessageShape<M['input']>): Promise<MessageShape<M['output']>> {
    const { access } = this.routes.get(method)!;
    const { caller, address, signal } = this.publisher;
    const { admission } = this.entrance;
    // A device is admitted and watched as long as its connection is open.
    if (isPublic(access)) await admission.admit(access, undefined, address, new Map());
    const refusal = authorize(access, caller, address);
    if (refusal !== undefined) throw permissionDenied(refusal);
    await admission.admitDevice(access, method, request, caller);
    const context: CallContext = {
      ...{ caller, tenantId: caller.tenantId, requestId: this.requestId, address, signal },
      metadata: noMetadata,
      responseMetadata: new Map(),
      afterResponse: (run) => void this.afterwards.push(run),
    };
    return this.entrance.invoker.unary(method, request, context);
  }

  /** Records the outcome. */
  end(code: KelletError['code'] | 'OK'): void {
    const { entrance, entry, method, trace } = this;
    entrance.metrics.observe(method, 'mqtt', code, entry.started);
    entry.code = code;
    entrance.accessLog.end(entry);
    endCall(trace, code);
  }

  done(): void {
    for (const run of this.afterwards.splice(0)) run();
  }
}

const accepted = (topic?: string, payload?: string | Uint8Array): Omit<Outcome, 'done'> => ({
  isRefused: false,
  isEachRejected: false,
  ...(topic !== undefined && payload !== undefined && { response: { topic, payload } }),
});

/** A message is refused only when every point of it is. */
function ingested({ accepted: stored, rejected, errors }: IngestResponse): Omit<Outcome, 'done'> {
  const [first] = errors;
  if (rejected === 0 || !first) return accepted();
  const message = `${rejected} of ${stored + rejected} points rejected; points[${first.index}]: ${first.message}`;
  return {
    isRefused: stored === 0,
    isEachRejected: stored === 0,
    error: new KelletError(first.code as KelletError['code'], message),
  };
}

function wholeNumber(name: string, text: string): number {
  const value = Number(text);
  if (!/^\d{1,10}$/.test(text) || value > 0xffff_ffff)
    throw invalidArgument(`${name} in the topic must be a whole number`);
  return value;
}

function emptyRequest(payload: Buffer): void {
  if (payload.length > 0 && Object.keys(jsonObject(payload)).length > 0) {
    throw invalidArgument('the payload must be an empty JSON object');
  }
}
