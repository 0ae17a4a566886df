// MQTT 5: everything on one connection per device, over TCP, TLS or WebSocket.
import { connect, type IClientOptions, type MqttClient } from 'mqtt';
import { DeviceError, unavailable } from '../errors.ts';
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
import type { RestProtocol } from './rest.ts';
import { callMilliseconds, type Listener, type Protocol, type TlsOptions, type Transport } from './transport.ts';

const root = 'kellet/v1/';
/** What a device subscribes to. Changes of shared attributes come as commands, as over the other protocols. */
const filters = ['commands', 'attributes/answer/+', 'ota/answer/+', 'ota/data/#', 'errors'].map((name) => root + name);

const codesOfReason: Readonly<Record<number, string>> = {
  0x87: 'PERMISSION_DENIED',
  0x97: 'RESOURCE_EXHAUSTED',
  0x99: 'INVALID_ARGUMENT',
  0x80: 'UNAVAILABLE',
};

/** Returns the errors with which the platform ends connections. */
function disconnection(reason: number): DeviceError {
  if (reason === 0x8e) return new DeviceError('ABORTED', 'the device has another, newer connection');
  if (reason === 0x87) return new DeviceError('UNAUTHENTICATED', 'the key is no longer valid');
  return unavailable(`the platform has ended the connection (0x${reason.toString(16)})`);
}

/**
 * Returns the error of a connection that was refused. The platform gives one reason for a wrong key and for a suspended
 * tenant, so the device tries again, but rarely.
 */
function refusal(error: Error & { code?: unknown }): DeviceError {
  const isRefused = error.code === 0x87 || error.code === 5;
  return new DeviceError(isRefused ? 'PERMISSION_DENIED' : 'UNAVAILABLE', error.message, { cause: error });
}

/** MQTT at `mqtt://host:port`, `mqtts://host:port`, `ws://host:port/mqtt` or `wss://host/mqtt`. */
export class MqttProtocol implements Protocol {
  private readonly url: string;
  private readonly tls: TlsOptions;
  private readonly rest: RestProtocol | undefined;

  /** With `rest` a gateway can connect children, and calls without a topic for children are made there. */
  constructor(url: string, tls: TlsOptions = {}, rest?: RestProtocol) {
    this.url = url;
    this.tls = tls;
    this.rest = rest;
  }

  async claim(claim: Claim, signal: AbortSignal): Promise<Identity> {
    const client = await this.connect('provision', 'any', signal);
    try {
      await client.subscribeAsync(`${root}provision/answer`, { qos: 1 });
      const arrived = new Promise<Buffer>((resolve, reject) => {
        client.on('message', (_topic, payload) => resolve(payload));
        client.on('close', () => reject(unavailable('no response to the claim')));
      });
      // The platform disconnects after the response, possibly before the acknowledgement.
      client.publish(`${root}provision`, JSON.stringify(claim), { qos: 1 });
      const result = JSON.parse((await arrived).toString()) as Identity & {
        error?: { code: string; message: string };
      };
      if (result.error) throw new DeviceError(result.error.code, result.error.message);
      return { device_id: result.device_id, api_key: result.api_key };
    } catch (error) {
      throw error instanceof DeviceError ? error : unavailable('the claim failed', error);
    } finally {
      client.end(true);
    }
  }

  open(identity: Identity): Transport {
    return new MqttTransport(this, identity, this.rest?.open(identity));
  }

  async close(): Promise<void> {
    await this.rest?.close();
  }

  /** Connects. The client does not reconnect by itself. */
  connect(username: string, password: string, signal: AbortSignal): Promise<MqttClient> {
    const options: IClientOptions = {
      ...{ username, password, protocolVersion: 5, clean: true, reconnectPeriod: 0, keepalive: 60 },
      ...{ connectTimeout: callMilliseconds, queueQoSZero: false, resubscribe: false },
      clientId: `device-${Math.random().toString(36).slice(2, 12)}`,
      ...this.tls,
    };
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason as Error);
      const client = connect(this.url, options);
      const fail = (error: Error): void => {
        signal.removeEventListener('abort', stop);
        client.end(true);
        reject(error);
      };
      const stop = (): void => fail(signal.reason as Error);
      signal.addEventListener('abort', stop);
      // Errors after the connection are followed by `close`.
      client.on('error', (error) => fail(refusal(error)));
      client.once('close', () => fail(unavailable('the connection was closed')));
      client.once('connect', () => {
        signal.removeEventListener('abort', stop);
        resolve(client);
      });
    });
  }
}

class MqttTransport implements Transport {
  private readonly protocol: MqttProtocol;
  private readonly identity: Identity;
  private client: MqttClient | undefined;
  private requests = 0;
  /** Settled by the next message on a topic, or by the end of the connection. */
  private readonly waiting = new Map<string, (error: Error | undefined, payload: Buffer) => void>();
  private readonly pending = new Set<(error: Error) => void>();
  /** What was reported about the points of the last message, by the name of its topic. */
  private readonly telemetryErrors = new Map<string, { code: string; message: string }>();
  private readonly rest: Transport | undefined;
  private readonly children = new Children();
  private takesChildren = false;

  constructor(protocol: MqttProtocol, identity: Identity, rest: Transport | undefined) {
    this.protocol = protocol;
    this.identity = identity;
    this.rest = rest;
  }

  async listen(listener: Listener, signal: AbortSignal): Promise<void> {
    const client = await this.protocol
      .connect(this.identity.device_id, this.identity.api_key, signal)
      .catch((error: unknown) => {
        if (signal.aborted) return undefined;
        throw error;
      });
    if (!client) return;
    const stop = (): void => void client.end(true);
    signal.addEventListener('abort', stop);
    try {
      await new Promise<void>((resolve, reject) => {
        let reason = unavailable('the connection was closed');
        client.on('disconnect', ({ reasonCode = 0 }) => (reason = disconnection(reasonCode)));
        client.on('close', () => (signal.aborted ? resolve() : reject(reason)));
        client.on('message', (topic, payload) => {
          try {
            this.take(topic, payload, listener);
          } catch (error) {
            reason = unavailable(`a message on ${topic} is malformed`, error);
            client.end(true);
          }
        });
        client.subscribe(filters, { qos: 1 }, (error) => {
          if (error) return void client.end(true);
          this.client = client;
          listener.onReady();
          if (this.children.any) this.takeChildren();
        });
      });
    } finally {
      signal.removeEventListener('abort', stop);
      this.client = undefined;
      const lost = unavailable('the connection was lost');
      this.takesChildren = false;
      this.children.lost(lost);
      for (const fail of [...this.pending]) fail(lost);
    }
  }

  send(points: readonly Point[], _requestKey: string, signal: AbortSignal): Promise<Ingested> {
    return this.sendTo('telemetry', points, signal);
  }

  /** Sends points of this device, or of a child, to a topic. */
  async sendTo(name: string, points: readonly Point[], signal: AbortSignal): Promise<Ingested> {
    this.telemetryErrors.delete(name);
    try {
      await this.publish(name, JSON.stringify({ points }), signal);
    } catch (error) {
      // The reason code says that every point was rejected, the message on the topic of errors says why.
      const told = this.telemetryErrors.get(name);
      throw told && error instanceof DeviceError ? new DeviceError(told.code, told.message) : error;
    }
    const told = this.telemetryErrors.get(name);
    if (!told) return { accepted: points.length, rejected: 0, errors: [] };
    return { accepted: points.length - 1, rejected: 1, errors: [told] };
  }

  respond(correlationId: string, response: Response, signal: AbortSignal): Promise<void> {
    return this.respondTo('commands', correlationId, response, signal);
  }

  /** Responds to a command that came on a topic. */
  async respondTo(name: string, correlationId: string, response: Response, signal: AbortSignal): Promise<void> {
    await this.publish(`${name}/${correlationId}/response`, JSON.stringify(response), signal);
  }

  /** Receives the commands of a child on this connection. */
  listenFor(deviceId: string, listener: Listener, signal: AbortSignal): Promise<void> {
    const listening = this.children.listen(deviceId, listener, signal);
    if (this.client) this.takeChildren();
    return listening;
  }

  private takeChildren(): void {
    if (this.takesChildren) return;
    this.takesChildren = true;
    const client = this.client!;
    client.subscribe(`${root}gateway/+/commands`, { qos: 1 }, (error) => {
      if (error) client.end(true);
      else if (this.client === client) this.children.opened();
    });
  }

  connectChild(child: Child, signal: AbortSignal): Promise<string> {
    return this.overRest().connectChild(child, signal);
  }

  disconnectChild(deviceId: string, signal: AbortSignal): Promise<void> {
    return this.overRest().disconnectChild(deviceId, signal);
  }

  child(deviceId: string): Transport {
    return new MqttChild(this, this.overRest().child(deviceId), deviceId);
  }

  private overRest(): Transport {
    if (this.rest) return this.rest;
    throw new DeviceError('UNIMPLEMENTED', 'a gateway over MQTT also needs the address of the REST API: restUrl');
  }

  async getAttributes(signal: AbortSignal): Promise<Attributes> {
    const id = String(++this.requests);
    const response = await this.ask(`attributes/get/${id}`, '{}', `attributes/answer/${id}`, signal);
    return JSON.parse(response.toString()) as Attributes;
  }

  async setAttributes(changes: JsonObject, signal: AbortSignal): Promise<void> {
    await this.publish('attributes', JSON.stringify(changes), signal);
  }

  async assignedPackage(signal: AbortSignal): Promise<AssignedPackage | undefined> {
    const id = String(++this.requests);
    const response = await this.ask(`ota/get/${id}`, '{}', `ota/answer/${id}`, signal);
    const assigned = JSON.parse(response.toString()) as AssignedPackage;
    return assigned.package_id === '' ? undefined : assigned;
  }

  chunk(packageId: string, offset: number, length: number, signal: AbortSignal): Promise<Uint8Array> {
    return this.ask(`ota/chunk/${packageId}/${offset}/${length}`, '', `ota/data/${packageId}/${offset}`, signal);
  }

  async report(report: OtaReport, signal: AbortSignal): Promise<void> {
    await this.publish('ota/report', JSON.stringify(report), signal);
  }

  async close(): Promise<void> {
    await this.client?.endAsync();
  }

  private take(topic: string, payload: Buffer, listener: Listener): void {
    if (topic === `${root}commands`) return listener.onCommand(JSON.parse(payload.toString()) as Command);
    const [, childId] = /^kellet\/v1\/gateway\/([^/]+)\/commands$/.exec(topic) ?? [];
    if (childId !== undefined) return this.children.take(childId, JSON.parse(payload.toString()) as Command);
    if (topic === `${root}errors`) {
      const { topic: about, code, message } = JSON.parse(payload.toString()) as Record<string, string>;
      if (about?.endsWith('/telemetry')) {
        this.telemetryErrors.set(about.slice(root.length), { code: code!, message: message! });
      }
      return;
    }
    this.waiting.get(topic)?.(undefined, payload);
  }

  /** Publishes with QoS 1. Resolves with the acknowledgement. */
  private publish(name: string, payload: string, signal: AbortSignal): Promise<void> {
    return this.limited(signal, (settle) => {
      this.client!.publish(root + name, payload, { qos: 1 }, (error) => {
        if (!error) return settle(undefined);
        const { code } = error as { code?: unknown };
        const name = typeof code === 'number' ? codesOfReason[code] : undefined;
        settle(new DeviceError(name ?? 'UNAVAILABLE', error.message, { cause: error }));
      });
    });
  }

  /** Publishes a question and returns the next message on the topic of its response. */
  private ask(name: string, payload: string, response: string, signal: AbortSignal): Promise<Buffer> {
    const topic = root + response;
    return this.limited<Buffer>(signal, (settle) => {
      this.waiting.set(topic, settle);
      this.publish(name, payload, signal).catch((error: Error) => settle(error, Buffer.alloc(0)));
    }).finally(() => this.waiting.delete(topic));
  }

  /** Starts something on the open connection. Fails with the connection, with the signal, and after the time of a call. */
  private limited<Result = void>(
    signal: AbortSignal,
    start: (settle: (error: Error | undefined, result: Result) => void) => void,
  ): Promise<Result>;
  private limited(signal: AbortSignal, start: (settle: (error?: Error) => void) => void): Promise<void>;
  private limited<Result>(
    signal: AbortSignal,
    start: (settle: (error?: Error, result?: Result) => void) => void,
  ): Promise<Result | undefined> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason as Error);
      if (!this.client) return reject(unavailable('not connected'));
      const settle = (error?: Error, result?: Result): void => {
        clearTimeout(timer);
        signal.removeEventListener('abort', stop);
        this.pending.delete(settle);
        if (error) reject(error);
        else resolve(result);
      };
      const stop = (): void => settle(signal.reason as Error);
      const timer = setTimeout(() => settle(unavailable('no acknowledgement')), callMilliseconds);
      signal.addEventListener('abort', stop);
      this.pending.add(settle);
      start(settle);
    });
  }
}

/** The calls of a child: points and commands on the gateway's connection, what has no topic for children over REST. */
class MqttChild implements Transport {
  private readonly gateway: MqttTransport;
  private readonly rest: Transport;
  private readonly deviceId: string;

  constructor(gateway: MqttTransport, rest: Transport, deviceId: string) {
    this.gateway = gateway;
    this.rest = rest;
    this.deviceId = deviceId;
  }

  send(points: readonly Point[], _requestKey: string, signal: AbortSignal): Promise<Ingested> {
    return this.gateway.sendTo(`gateway/${this.deviceId}/telemetry`, points, signal);
  }

  listen(listener: Listener, signal: AbortSignal): Promise<void> {
    return this.gateway.listenFor(this.deviceId, listener, signal);
  }

  respond(correlationId: string, response: Response, signal: AbortSignal): Promise<void> {
    return this.gateway.respondTo(`gateway/${this.deviceId}/commands`, correlationId, response, signal);
  }

  getAttributes(signal: AbortSignal): Promise<Attributes> {
    return this.rest.getAttributes(signal);
  }

  setAttributes(changes: JsonObject, signal: AbortSignal): Promise<void> {
    return this.rest.setAttributes(changes, signal);
  }

  assignedPackage(signal: AbortSignal): Promise<AssignedPackage | undefined> {
    return this.rest.assignedPackage(signal);
  }

  chunk(packageId: string, offset: number, length: number, signal: AbortSignal): Promise<Uint8Array> {
    return this.rest.chunk(packageId, offset, length, signal);
  }

  report(report: OtaReport, signal: AbortSignal): Promise<void> {
    return this.rest.report(report, signal);
  }

  connectChild(child: Child, signal: AbortSignal): Promise<string> {
    return this.rest.connectChild(child, signal);
  }

  disconnectChild(deviceId: string, signal: AbortSignal): Promise<void> {
    return this.rest.disconnectChild(deviceId, signal);
  }

  child(deviceId: string): Transport {
    return this.rest.child(deviceId);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
