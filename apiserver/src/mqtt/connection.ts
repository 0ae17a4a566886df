// One MQTT connection of a device: from CONNECT to its end, what is read and when, and what is written.
import type { Duplex } from 'node:stream';
import { timestampDate } from '@bufbuild/protobuf/wkt';
import { DeviceLinkService, type RpcRecord } from '@kellet/proto/es/kellet/v1/device_link_pb';
import type { LRUCache } from 'lru-cache';
import type { IConnectPacket, IPublishPacket, ISubscribePacket, Packet } from 'mqtt-packet';
import type { DeviceProof } from '../auth/credentials/device-proof.ts';
import { attributesChanged } from '../device-link/commands/command-method.ts';
import { MessagePace } from '../device-link/streams/message-pace.ts';
import { authorize } from '../gateway/admission/authorize.ts';
import type { Entrance } from '../gateway/gateway.ts';
import { endConnection } from '../gateway/http/http-server.ts';
import type { Hold, MemoryBudget } from '../gateway/memory/memory-budget.ts';
import { accessOf } from '../gateway/transcoding/routes.ts';
import { addressBlock } from '../platform/addresses/address-block.ts';
import { type ErrorCode, type KelletError, toKelletError, unauthenticated, unavailable } from '../platform/errors.ts';
import { newId, newRequestId } from '../platform/ids.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { inSomeTrace } from '../platform/observability/tracing.ts';
import { publicCaller } from '../platform/rpc.ts';
import { CommandStream } from './command-stream.ts';
import { claimUsername, type ConnectRequest, decideConnect, type Will } from './connect-decision.ts';
import type { DeviceCalls, Outcome, Published, Publisher } from './device-calls.ts';
import { FrameError, FrameReader } from './frames.ts';
import {
  type DisconnectReason,
  headBytes,
  isConnect,
  MalformedPacket,
  packetBytes,
  parseConnect,
  parsePacket,
  reasons,
  returnCodes,
  type Version,
  versionOfConnect,
} from './packets.ts';
import type { Session, Sessions } from './sessions.ts';
import { type Action, actionOf, isOwnFilter, qosOf, topics, wantedBy } from './topics.ts';

/** Limits of a connection. */
export const connectionLimits = {
  /** Time from the connection to a complete CONNECT. */
  connectMilliseconds: 10_000,
  packetBytes: 1024 * 1024,
  /** Of a packet, but for the topic and payload of a PUBLISH. */
  controlBytes: 16 * 1024,
  /** Of a CONNECT, and of everything from a device without an identity. */
  strangerBytes: 80 * 1024,
  /** Messages of the device that are being processed. */
  receiveMaximum: 64,
  /** Bytes of them; a further one is read only below that. */
  receiveBytes: 1024 * 1024,
  /** Commands that the device has not acknowledged. */
  sendMaximum: 16,
  subscriptions: 32,
  /** How long a device may read nothing of what waits for it. */
  stallMilliseconds: 60_000,
  /** Time for a dismissed client to close its side. */
  lingerMilliseconds: 1000,
} as const;

/** Bytes of an open connection that do not count towards the tenant's memory. */
const uncountedBytes = 16 * 1024;

/** What a connection that has ended takes as long as messages of it wait, besides these. */
const endedBytes = 16 * 1024;

/** What a filter of SUBSCRIBE or UNSUBSCRIBE takes besides its bytes. */
const filterBytes = 128;

/** What a will that waits takes besides its payload: the stream of its device stays open. */
export const waitingWillBytes = 40 * 1024;

/** Dependencies of connections. */
export interface ConnectionParts {
  readonly entrance: Entrance;
  readonly calls: DeviceCalls;
  readonly sessions: Sessions;
  /** Bounds the wills that wait: their connections, which are limited, have ended. */
  readonly wills: MemoryBudget;
  readonly logger: Logger;
  /** Messages a second of a device. */
  readonly rate: number;
  /** By `tenant/device`, so that connecting again does not renew it. */
  readonly paces: LRUCache<string, MessagePace>;
  /** The open connections by `tenant/device`. */
  readonly byDevice: Map<string, Connection>;
  /** Called when the response to a CONNECT has been sent. */
  readonly judged: (code: ErrorCode | 'OK') => void;
  /** Called with the reason code when an open connection ends. */
  readonly ended: (reason: number) => void;
}

/** What waits to be carried out; undefined once its memory is needed. */
interface Waiting<Content> {
  content: Content | undefined;
}

/** A message with QoS 1 of the device, in order of arrival; it is acknowledged once `reason` is known. */
interface Unacknowledged {
  readonly messageId: number;
  reason: number | undefined;
}

/** Where a connection comes from. */
export interface Peer {
  readonly address: string;
  /** What the TLS handshake proves. */
  readonly proof: DeviceProof | undefined;
}

/** What is known once a CONNECT has been accepted. */
interface Accepted {
  readonly request: ConnectRequest;
  readonly publisher: Publisher;
  readonly pace: MessagePace;
  /** Undefined for a device that claims its identity. */
  readonly device?: {
    readonly session: Session;
    readonly stream: CommandStream;
    readonly unwatch: () => void;
  };
}

/** One connection. */
export class Connection {
  private readonly parts: ConnectionParts;
  private readonly stream: Duplex;
  private readonly address: string;
  private readonly proof: DeviceProof | undefined;
  private frames = new FrameReader();
  private readonly controller = new AbortController();
  private version: Version = 4;
  private state: 'waiting' | 'judging' | 'open' | 'over' = 'waiting';
  private accepted: Accepted | undefined;
  private timer: NodeJS.Timeout | undefined;
  private paceTimer: NodeJS.Timeout | undefined;
  private stallTimer: NodeJS.Timeout | undefined;
  private lastAt = performance.now();
  private isPumping = false;
  private isDraining = false;
  /** Whether the device may do nothing more: its credential has ended, or its tenant is suspended. */
  private isRefused = false;
  private isCorked = false;
  private hold: Hold | undefined;
  private readonly waiting = new Set<Waiting<unknown>>();
  private running = 0;
  private runningBytes = 0;
  private outsideBytes = 0;
  /** Everything but telemetry is processed in order. */
  private tail: Promise<unknown> = Promise.resolve();
  private readonly toAcknowledge: Unacknowledged[] = [];
  /** Commands with QoS 1 that the device has not acknowledged: what to do when it does. */
  private readonly sent = new Map<number, () => void>();
  private lastMessageId = 0;
  private roused: (() => void)[] = [];

  constructor(parts: ConnectionParts, stream: Duplex, { address, proof }: Peer) {
    this.parts = parts;
    this.stream = stream;
    this.address = address;
    this.proof = proof;
    this.timer = setTimeout(() => this.drop(), connectionLimits.connectMilliseconds);
    stream.on('data', (chunk: Buffer) => this.take(chunk));
    stream.on('drain', () => this.drained());
    stream.on('end', () => stream.end());
    stream.on('error', (error) => parts.logger.debug({ err: error }, 'an MQTT connection failed'));
    stream.once('close', () => this.finish(reasons.unspecified, true));
  }

  /** Whether the client has not shown which device it is. */
  get isStranger(): boolean {
    return this.state !== 'over' && this.accepted?.device === undefined;
  }

  /** Whether the server is finding out, or carries out a claim. */
  get isBusy(): boolean {
    return this.state === 'judging' || this.running > 0;
  }

  /** Notes the bytes that the transport holds until a message of its own is complete. */
  holdOutside(bytes: number): void {
    this.outsideBytes = bytes;
    this.count();
  }

  /** Closes a connection of a stranger, to make room for others. */
  makeRoom(): void {
    this.close(reasons.quotaExceeded, false);
    this.stream.destroy();
  }

  /** Closes the connection once what is being processed is done: the server stops. */
  async drain(milliseconds: number): Promise<void> {
    this.isDraining = true;
    if (this.state !== 'open') return this.drop();
    const end = performance.now() + milliseconds;
    while (this.running > 0 && performance.now() < end) {
      await Promise.race([this.untilRoused(), new Promise((resolve) => setTimeout(resolve, 100))]);
    }
    this.close(reasons.serverShuttingDown, false);
  }

  /** Ends the connection because the device has a newer one. */
  replace(): void {
    this.close(reasons.sessionTakenOver, true);
  }

  private take(chunk: Buffer): void {
    if (this.state === 'over') return;
    this.lastAt = performance.now();
    // Checked at once, because bytes of another protocol could announce a length that never arrives.
    if (this.state === 'waiting' && this.frames.bytes === 0 && !isConnect(chunk)) return this.drop();
    this.frames.add(chunk);
    this.pump();
  }

  /** Processes the packets that have arrived, as long as nothing demands a pause. */
  private pump(): void {
    if (this.state === 'over') return this.count();
    if (this.isPumping) return;
    this.isPumping = true;
    try {
      while (!this.isBlocked()) {
        const frame = this.frames.next(this.limit());
        if (!frame) break;
        this.receive(frame);
      }
    } catch (error) {
      this.fault(error);
    }
    this.isPumping = false;
    this.count();
    if ((this.state as string) === 'over') return;
    if (this.isBlocked()) this.stream.pause();
    else this.stream.resume();
  }

  private limit(): number {
    return this.accepted?.device ? connectionLimits.packetBytes : connectionLimits.strangerBytes;
  }

  private isBlocked(): boolean {
    return (
      this.state === 'judging' ||
      this.state === 'over' ||
      this.isDraining ||
      this.paceTimer !== undefined ||
      this.running >= connectionLimits.receiveMaximum ||
      this.runningBytes > connectionLimits.receiveBytes ||
      this.stream.writableNeedDrain
    );
  }

  /** Counts what the connection holds towards the memory of its tenant, after its end as long as its messages wait. */
  private count(): void {
    const tenantId = this.accepted?.publisher.caller.tenantId;
    if (tenantId === undefined) return;
    if (this.bytesHeld() > 0) {
      this.hold ??= this.parts.entrance.memory.holdCaller(tenantId, () => this.giveUpMemory());
      this.hold.set(this.bytesHeld());
    } else {
      this.hold?.release();
      this.hold = undefined;
    }
  }

  private bytesHeld(): number {
    if (this.state === 'over') return this.running > 0 ? this.runningBytes + endedBytes : 0;
    const will = this.accepted?.request.will?.payload.length ?? 0;
    const bytes = this.frames.bytes + this.outsideBytes + this.runningBytes + will;
    return bytes > uncountedBytes ? bytes : 0;
  }

  /** Ends the connection, and drops what waits: none of it is acknowledged. */
  private giveUpMemory(): void {
    for (const waiting of this.waiting) waiting.content = undefined;
    this.close(reasons.quotaExceeded, true);
  }

  /** Ends the connection for bytes that are not a packet. */
  private fault(error: unknown): void {
    if (!(error instanceof FrameError) && !(error instanceof MalformedPacket)) {
      this.parts.logger.error({ err: error }, 'an MQTT packet could not be processed');
      return this.close(reasons.unspecified, true);
    }
    if (this.state !== 'open') return this.drop();
    const isTooLarge = error instanceof FrameError && error.isTooLarge;
    this.close(isTooLarge ? reasons.packetTooLarge : reasons.malformedPacket, true);
  }

  private receive(frame: Buffer): void {
    const { accepted } = this;
    if (!accepted) return this.receiveFirst(frame);
    // Of other packets a little is enough, and parsing them takes many times their bytes.
    if (
      frame.length > connectionLimits.controlBytes &&
      headBytes(frame, this.version) > connectionLimits.controlBytes
    ) {
      throw new FrameError('what the packet has besides a message is too large', true);
    }
    this.handle(parsePacket(frame, this.version), accepted, frame.length);
    const wait = accepted.pace.take(performance.now());
    if (wait <= 0 || (this.state as string) === 'over') return;
    this.paceTimer = setTimeout(() => {
      this.paceTimer = undefined;
      this.pump();
    }, wait);
  }

  private handle(packet: Packet, accepted: Accepted, bytes: number): void {
    switch (packet.cmd) {
      case 'publish':
        return this.publish(packet, accepted, bytes);
      case 'puback':
        return this.acknowledged(packet.messageId ?? 0, packet.reasonCode ?? 0);
      case 'subscribe':
        return this.subscribe(packet, bytes + packet.subscriptions.length * filterBytes);
      case 'unsubscribe': {
        const messageId = requireId(packet.messageId);
        const { unsubscriptions: filters } = packet;
        return this.changeSubscriptions(
          () => this.unsubscribe(messageId, filters),
          bytes + filters.length * filterBytes,
        );
      }
      case 'pingreq':
        this.send({ cmd: 'pingresp' });
        return;
      case 'disconnect': {
        const expiry = packet.properties?.sessionExpiryInterval;
        const session = accepted.device?.session;
        if (session && typeof expiry === 'number' && session.expirySeconds > 0) {
          session.expirySeconds = Math.min(expiry, accepted.request.expirySeconds);
        }
        return this.finish(reasons.success, packet.reasonCode === reasons.withWill);
      }
      default:
        return this.close(reasons.protocolError, true);
    }
  }

  // CONNECT

  private receiveFirst(frame: Buffer): void {
    if (!isConnect(frame)) return this.drop();
    let packet: IConnectPacket;
    try {
      packet = parseConnect(frame);
    } catch {
      this.version = versionOfConnect(frame);
      return this.refuse('UNAUTHENTICATED');
    }
    this.version = packet.protocolVersion === 5 ? 5 : 4;
    const request = decideConnect(packet, this.proof !== undefined);
    if (!request) return this.refuse('UNAUTHENTICATED');
    this.state = 'judging';
    // A busy server that dropped it now would have to decide on the next attempt too, and might never accept a fleet that returns.
    clearTimeout(this.timer);
    this.connect(request).catch((thrown: unknown) => {
      const error = toKelletError(thrown);
      if (error.code === 'INTERNAL') this.parts.logger.error({ err: error.cause ?? error }, 'CONNECT failed');
      this.refuse(error.code);
    });
  }

  private async connect(request: ConnectRequest): Promise<void> {
    const { address, controller } = this;
    const { signal } = controller;
    const { entrance, sessions, paces, rate, byDevice } = this.parts;
    if (request.username === claimUsername) {
      const pace = new MessagePace(rate, performance.now());
      this.open({ request, publisher: { caller: publicCaller, address, signal }, pace }, false, request.clientId);
      return;
    }
    const access = accessOf(DeviceLinkService.method.connect);
    const entry = entrance.accessLog.begin('mqtt', 'CONNECT', newRequestId(), undefined);
    entry.route = 'kellet.v1.DeviceLinkService/Connect';
    entry.address = address;
    try {
      const credential = request.password === '' ? this.proof : request.password;
      const caller = await inSomeTrace(() =>
        entrance.admission.admit(access, credential, address, new Map(), '', entry),
      );
      const named = request.username.toLowerCase();
      // With a proof the user name may be absent, but not another device's.
      if (caller.deviceId !== named && (named !== '' || credential !== this.proof)) throw unauthenticated();
      if (this.isGone()) return;
      const publisher = { caller, address, signal };
      const clientId = request.clientId || newId();
      const { tenantId, deviceId } = caller;
      const beginning = { ...request, deviceId, clientId, connectionId: newId() };
      const { session, isPresent } = await sessions.begin(tenantId, beginning);
      try {
        const stream = await CommandStream.open(entrance.invoker, publisher, wantedBy(session.subscriptions), {
          command: (command) => this.deliver(command),
          ended: (error) => this.streamEnded(error),
        });
        if (this.isGone()) throw new Error('the connection has ended');
        const unwatch = entrance.authenticator.watch({
          ...{ credential: credential!, caller, address },
          refusalOf: (now) => authorize(access, now, address),
          end: () => {
            this.isRefused = true;
            this.close(reasons.notAuthorized, false);
            // A will that waits is not published either.
            controller.abort();
          },
        });
        const key = `${tenantId}/${deviceId}`;
        let pace = paces.get(key);
        if (!pace) paces.set(key, (pace = new MessagePace(rate, performance.now())));
        byDevice.get(key)?.replace();
        byDevice.set(key, this);
        this.open({ request, publisher, pace, device: { session, stream, unwatch } }, isPresent, clientId);
      } catch (error) {
        await sessions.end(session);
        if (!this.isGone()) throw error;
      }
    } catch (error) {
      entry.code = toKelletError(error).code;
      throw error;
    } finally {
      entrance.accessLog.end(entry);
    }
  }

  private isGone(): boolean {
    return this.state === 'over';
  }

  private open(accepted: Accepted, isPresent: boolean, clientId: string): void {
    const { request } = accepted;
    clearTimeout(this.timer);
    this.accepted = accepted;
    this.state = 'open';
    this.parts.judged('OK');
    this.send({
      cmd: 'connack',
      sessionPresent: isPresent,
      ...(this.version === 4
        ? { returnCode: returnCodes.accepted }
        : {
            reasonCode: reasons.success,
            properties: {
              ...(request.isExpiryShortened && { sessionExpiryInterval: request.expirySeconds }),
              receiveMaximum: connectionLimits.receiveMaximum,
              maximumQoS: 1,
              retainAvailable: false,
              maximumPacketSize: this.limit(),
              ...(request.clientId === '' && { assignedClientIdentifier: clientId }),
              wildcardSubscriptionAvailable: true,
              subscriptionIdentifiersAvailable: false,
              sharedSubscriptionAvailable: false,
            },
          }),
    });
    // A claim is short, whatever keep-alive the client requests.
    if (!accepted.device) this.timer = setTimeout(() => this.endClaim(), connectionLimits.connectMilliseconds);
    else if (request.keepAliveSeconds > 0) this.checkAlive(request.keepAliveSeconds * 1500);
    this.rouse();
    this.pump();
  }

  /** Ends the connection of a claim that has not been made; one that is being carried out ends it. */
  private endClaim(): void {
    if (this.running > 0) this.timer = setTimeout(() => this.endClaim(), connectionLimits.connectMilliseconds);
    else this.close(reasons.keepAliveTimeout, true);
  }

  private checkAlive(milliseconds: number): void {
    const left = this.lastAt + milliseconds - performance.now();
    // While the server does not read, the device's packets cannot arrive.
    if (left <= 0 && !this.isBlocked()) return this.close(reasons.keepAliveTimeout, true);
    this.timer = setTimeout(() => this.checkAlive(milliseconds), left > 0 ? left : milliseconds);
  }

  /** Refuses a CONNECT, with the same code for every fault of the client. */
  private refuse(code: ErrorCode): void {
    if (this.state === 'over') return;
    const isFault = code === 'UNAUTHENTICATED' || code === 'PERMISSION_DENIED';
    const returnCode = isFault ? returnCodes.notAuthorized : returnCodes.unavailable;
    const later = code === 'RESOURCE_EXHAUSTED' ? reasons.connectionRateExceeded : reasons.serverUnavailable;
    const reasonCode = isFault ? reasons.notAuthorized : later;
    this.parts.judged(code);
    const response = this.version === 4 ? { returnCode } : { reasonCode };
    const bytes = packetBytes({ cmd: 'connack', sessionPresent: false, ...response }, this.version);
    this.finish(reasons.notAuthorized, false, bytes);
  }

  // Messages of the device

  private publish(packet: IPublishPacket, accepted: Accepted, bytes: number): void {
    const { qos, topic, properties = {} } = packet;
    if (qos === 2) return this.close(reasons.qosNotSupported, true);
    if (properties.topicAlias !== undefined) return this.close(reasons.topicAliasInvalid, true);
    // MQTT 3.1.1 has no way to tell that nothing is retained.
    if (packet.retain && this.version === 5) return this.close(reasons.retainNotSupported, true);
    const messageId = qos === 1 ? requireId(packet.messageId) : 0;
    const action = actionOf(topic);
    if (!action || (action.kind === 'claim') === (accepted.device !== undefined)) {
      return this.close(reasons.topicNameInvalid, true);
    }
    const unacknowledged = { messageId, reason: undefined };
    if (qos === 1) this.toAcknowledge.push(unacknowledged);
    const payload = packet.payload as Buffer;
    const contentType = typeof properties.contentType === 'string' ? properties.contentType : '';
    const waiting: Waiting<Published> = { content: { action, payload, contentType } };
    const over = this.begin(waiting, bytes);
    this.process(waiting, accepted, bytes).then(
      (outcome) => {
        try {
          this.processed({ topic, action }, outcome, unacknowledged, accepted);
        } catch (error) {
          this.fault(error);
        } finally {
          over();
        }
      },
      () => {
        this.close(reasons.serverBusy, true);
        over();
      },
    );
  }

  /** Counts what waits, and returns the function that must be called when it is over. */
  private begin(waiting: Waiting<unknown>, bytes: number): () => void {
    this.waiting.add(waiting);
    this.running += 1;
    this.runningBytes += bytes;
    return () => {
      this.waiting.delete(waiting);
      this.running -= 1;
      this.runningBytes -= bytes;
      this.rouse();
      this.pump();
    };
  }

  /** Telemetry is processed at once, so that many messages share a commit; everything else in order. */
  private process(waiting: Waiting<Published>, { publisher }: Accepted, bytes: number): Promise<Outcome> {
    const { calls, entrance } = this.parts;
    const owner = publisher.caller.tenantId || addressBlock(this.address);
    const call = (): Promise<Outcome> => {
      if (!waiting.content) return Promise.reject(unavailable('the memory of the tenant is used up'));
      // What waits while the credential ends is not carried out any more.
      return this.isRefused ? Promise.reject(unauthenticated()) : calls.take(waiting.content, publisher);
    };
    const take = (): Promise<Outcome> => {
      const turn = entrance.turns.enter(owner, bytes);
      return turn ? turn.then(call) : call();
    };
    if (waiting.content?.action.kind === 'telemetry') return take();
    const next = this.tail.then(async () => {
      // A response may be as large as a chunk of an artifact: a device that does not read gets no more of them.
      while (this.state === 'open' && this.stream.writableNeedDrain) await this.untilRoused();
      return waiting.content ? entrance.large.run(publisher.caller.tenantId, bytes, 'others', take) : call();
    });
    // The outcome, which may have a chunk of an artifact, is not kept until the next message.
    this.tail = next.then(
      () => undefined,
      () => undefined,
    );
    return next;
  }

  private processed(
    { topic, action }: { readonly topic: string; readonly action: Action },
    outcome: Outcome,
    unacknowledged: Unacknowledged,
    accepted: Accepted,
  ): void {
    const { response, error, isRefused } = outcome;
    if (response) this.tell(response.topic, response.payload, accepted);
    if (error && !(response && isRefused)) this.tell(topics.errors, errorBody(topic, error), accepted);
    unacknowledged.reason = isRefused && error ? reasonOf(error, outcome.isEachRejected) : reasons.success;
    this.acknowledge();
    outcome.done();
    if (action.kind === 'claim') this.close(reasons.success, false);
  }

  /** Acknowledges in the order of arrival (OASIS MQTT 5.0, 4.6). */
  private acknowledge(): void {
    while (this.toAcknowledge[0]?.reason !== undefined) {
      const { messageId, reason } = this.toAcknowledge.shift()!;
      this.send({ cmd: 'puback', messageId, ...(this.version === 5 && { reasonCode: reason! }) });
    }
  }

  /** Publishes a response or an error with QoS 0: after a lost connection the device asks again. */
  private tell(topic: string, payload: string | Uint8Array, { device }: Accepted): void {
    // The key of a claim is shown once, so it must not depend on a subscription.
    if (device && qosOf(device.session.subscriptions, topic) === undefined) return;
    this.send(message(topic, payload, 0));
  }

  // Subscriptions

  private subscribe({ messageId, subscriptions, properties }: ISubscribePacket, bytes: number): void {
    const id = requireId(messageId);
    if (properties?.subscriptionIdentifier !== undefined) {
      return this.close(reasons.subscriptionIdentifiersNotSupported, true);
    }
    if (subscriptions.length === 0) return this.close(reasons.protocolError, true);
    this.changeSubscriptions(async () => {
      const changed = new Map(this.accepted?.device?.session.subscriptions);
      const granted = subscriptions.map(({ topic, qos }) => {
        if (!isOwnFilter(topic)) return this.version === 5 ? reasons.notAuthorized : reasons.unspecified;
        if (!changed.has(topic) && changed.size >= connectionLimits.subscriptions) {
          return this.version === 5 ? reasons.quotaExceeded : reasons.unspecified;
        }
        const most = qos === 0 ? 0 : 1;
        changed.set(topic, most);
        return most;
      });
      await this.keepSubscriptions(changed);
      this.send({ cmd: 'suback', messageId: id, granted });
      this.wantCommands();
    }, bytes);
  }

  private async unsubscribe(messageId: number, filters: readonly string[]): Promise<void> {
    const changed = new Map(this.accepted?.device?.session.subscriptions);
    const granted = filters.map((filter) => (changed.delete(filter) ? reasons.success : reasons.noSubscription));
    await this.keepSubscriptions(changed);
    this.send({ cmd: 'unsuback', messageId, granted });
    this.wantCommands();
  }

  private async keepSubscriptions(changed: ReadonlyMap<string, 0 | 1>): Promise<void> {
    const device = this.accepted?.device;
    if (device) await this.parts.sessions.subscribe(device.session, changed);
  }

  private wantCommands(): void {
    const device = this.accepted?.device;
    if (device && this.state === 'open') device.stream.want(wantedBy(device.session.subscriptions));
  }

  private changeSubscriptions(change: () => Promise<void>, bytes: number): void {
    const waiting: Waiting<() => Promise<void>> = { content: change };
    const over = this.begin(waiting, bytes);
    this.tail = this.tail
      .then(() => (this.state === 'open' ? waiting.content?.() : undefined))
      .catch(() => this.close(reasons.serverBusy, true))
      .finally(over);
  }

  // Commands to the device

  /** Publishes a command. Resolves once there is room for the next one. */
  private async deliver(command: RpcRecord): Promise<void> {
    while (this.state === 'judging') await this.untilRoused();
    const session = this.accepted?.device?.session;
    // Its text alone waits for room: as an object a command takes far more.
    return session && this.publishCommand(command.correlationId, commandMessage(command, session));
  }

  private async publishCommand(
    correlationId: string,
    { topic, payload, isDelta }: ReturnType<typeof commandMessage>,
  ): Promise<void> {
    const { accepted } = this;
    if (!accepted?.device) return;
    const qos = qosOf(accepted.device.session.subscriptions, topic);
    const most = Math.min(accepted.request.receiveMaximum, connectionLimits.sendMaximum);
    while (this.state === 'open' && (this.stream.writableNeedDrain || (qos === 1 && this.sent.size >= most))) {
      await this.untilRoused();
    }
    if (this.state !== 'open' || qos === undefined) return;
    // For a delta of attributes the PUBACK is the confirmation, because the device sends no response.
    const confirm = (): void => {
      if (isDelta) this.confirm(correlationId, accepted.publisher);
    };
    if (qos === 0) {
      this.send(message(topic, payload, 0));
      return confirm();
    }
    const messageId = this.nextMessageId();
    // One that is too large for the device takes no place among those that it has to acknowledge.
    if (this.send({ ...message(topic, payload, 1), messageId })) this.sent.set(messageId, confirm);
  }

  private confirm(correlationId: string, publisher: Publisher): void {
    const payload = Buffer.from('{"success":true}');
    const action: Action = { kind: 'response', deviceId: '', correlationId };
    this.parts.calls.take({ action, payload, contentType: '' }, publisher).catch((error: unknown) => {
      this.parts.logger.debug({ err: error }, 'a delta of attributes is delivered again: not recorded as delivered');
    });
  }

  private acknowledged(messageId: number, reasonCode: number): void {
    const confirm = this.sent.get(messageId);
    this.sent.delete(messageId);
    if (reasonCode < reasons.unspecified) confirm?.();
    this.rouse();
  }

  private nextMessageId(): number {
    do this.lastMessageId = (this.lastMessageId % 65_535) + 1;
    while (this.sent.has(this.lastMessageId));
    return this.lastMessageId;
  }

  private streamEnded(error: KelletError): void {
    if (error.code === 'ABORTED') this.close(reasons.sessionTakenOver, true);
    else if (error.code === 'UNAUTHENTICATED' || error.code === 'PERMISSION_DENIED') {
      this.close(reasons.notAuthorized, false);
    } else this.close(reasons.serverBusy, false);
    // A newer connection, or the end of the server, cancels a will that waits.
    this.controller.abort();
  }

  // Writing and the end

  /** Sends a packet, unless it is larger than the client accepts. Reports whether it was sent. */
  private send(packet: Packet): boolean {
    if (this.state === 'over') return false;
    const bytes = packetBytes(packet, this.version);
    if (bytes.length > (this.accepted?.request.maximumPacketBytes ?? Infinity)) return false;
    if (!this.isCorked) {
      this.isCorked = true;
      this.stream.cork();
      process.nextTick(() => {
        this.isCorked = false;
        this.stream.uncork();
      });
    }
    if (!this.stream.write(bytes)) {
      this.stallTimer ??= setTimeout(() => this.stream.destroy(), connectionLimits.stallMilliseconds);
    }
    return true;
  }

  private drained(): void {
    clearTimeout(this.stallTimer);
    this.stallTimer = undefined;
    this.rouse();
    this.pump();
  }

  private untilRoused(): Promise<void> {
    return new Promise((resolve) => this.roused.push(resolve));
  }

  private rouse(): void {
    for (const resolve of this.roused.splice(0)) resolve();
  }

  /** Closes the connection, in MQTT 5 with a reason, in whatever state it is. */
  private close(reason: DisconnectReason, publishesWill: boolean): void {
    if (this.state === 'over') return;
    const tells = this.version === 5 && this.accepted !== undefined;
    const bytes = tells ? packetBytes({ cmd: 'disconnect', reasonCode: reason }, 5) : undefined;
    this.finish(reason, publishesWill, bytes);
  }

  /** Closes a connection that has not sent a CONNECT, without a response. */
  private drop(): void {
    this.finish(reasons.protocolError, false);
    this.stream.destroy();
  }

  /** Ends the connection. Later calls have no effect. */
  private finish(reason: number, publishesWill: boolean, last?: Uint8Array): void {
    if (this.state === 'over') return;
    this.state = 'over';
    for (const timer of [this.timer, this.paceTimer, this.stallTimer]) clearTimeout(timer);
    if (!this.stream.destroyed) {
      if (last) this.stream.write(last);
      endConnection(this.stream, '', connectionLimits.lingerMilliseconds);
    }
    this.frames = new FrameReader();
    this.count();
    this.rouse();
    const { accepted, parts } = this;
    const { device } = accepted ?? {};
    if (!accepted || !device) return this.controller.abort();
    parts.ended(reason);
    // The credential counts as long as a will waits, or what the device has sent before.
    const unwatch = (): void => void this.tail.then(device.unwatch);
    this.controller.signal.addEventListener('abort', unwatch, { once: true });
    const { tenantId, deviceId } = accepted.publisher.caller;
    const key = `${tenantId}/${deviceId}`;
    if (parts.byDevice.get(key) === this) parts.byDevice.delete(key);
    parts.sessions.end(device.session).catch((error: unknown) => {
      parts.logger.debug({ err: error }, 'the end of an MQTT session could not be recorded; it expires later');
    });
    const { will } = accepted.request;
    if (publishesWill && will) this.publishWill(will, accepted);
    else this.controller.abort();
  }

  /**
   * Publishes the will after its delay, or sooner if too many wait, and ends the stream of commands after that, so that the
   * device goes offline although its will is a sign of life. A newer connection of the device ends the stream before, and
   * cancels the will.
   */
  private publishWill({ delaySeconds, ...will }: Will, accepted: Accepted): void {
    const { publisher, device } = accepted;
    const { signal } = this.controller;
    device!.stream.want({ own: 'none', children: [] });
    let isPublished = false;
    const publish = (): void => {
      // Too many others may wait while this one is being published.
      if (signal.aborted || isPublished) return;
      isPublished = true;
      const waiting: Waiting<Published> = { content: will };
      const bytes = will.payload.length;
      const over = this.begin(waiting, bytes);
      // After what the device has sent before, and in turns like that: the connections of many devices may end at once.
      this.process(waiting, accepted, bytes)
        .catch((error: unknown) => this.parts.logger.debug({ err: error }, 'a will could not be published'))
        .finally(() => {
          over();
          this.controller.abort();
        });
      this.count();
    };
    if (delaySeconds === 0) return publish();
    const timer = setTimeout(publish, delaySeconds * 1000);
    const hold = this.parts.wills.hold(publisher.caller.tenantId, () => {
      clearTimeout(timer);
      publish();
    });
    signal.addEventListener('abort', () => (clearTimeout(timer), hold.release()), { once: true });
    hold.set(waitingWillBytes + will.payload.length);
  }
}

/** A packet id is required where the protocol has one. */
function requireId(messageId: number | undefined): number {
  if (messageId === undefined || messageId < 1) throw new MalformedPacket('a packet id is required');
  return messageId;
}

const message = (topic: string, payload: string | Uint8Array, qos: 0 | 1): IPublishPacket => ({
  cmd: 'publish',
  topic,
  payload: typeof payload === 'string' ? payload : Buffer.from(payload),
  ...{ qos, dup: false, retain: false },
});

const errorBody = (topic: string, { code, message: text }: KelletError): string =>
  JSON.stringify({ topic, code, message: text });

/** The reason of a PUBACK for a message that is refused. */
function reasonOf({ code }: KelletError, isEachRejected: boolean): number {
  if (isEachRejected) return reasons.payloadFormatInvalid;
  if (code === 'PERMISSION_DENIED' || code === 'NOT_FOUND' || code === 'UNAUTHENTICATED') return reasons.notAuthorized;
  if (code === 'RESOURCE_EXHAUSTED') return reasons.quotaExceeded;
  return code === 'INTERNAL' ? reasons.unspecified : reasons.payloadFormatInvalid;
}

/** Where and how a command is published. Changes of the device's own attributes have a topic of their own. */
function commandMessage(
  { correlationId, deviceId, method, params = {}, expiresAt }: RpcRecord,
  session: Session,
): { topic: string; payload: string; isDelta: boolean } {
  const isOwn = deviceId === session.deviceId;
  const { changed, removed } = params;
  const isDelta =
    isOwn &&
    method === attributesChanged &&
    // An earlier release let users send commands of this name, with any params.
    typeof changed === 'object' &&
    Array.isArray(removed) &&
    qosOf(session.subscriptions, topics.sharedAttributes) !== undefined;
  if (isDelta) return { topic: topics.sharedAttributes, payload: JSON.stringify({ changed, removed }), isDelta };
  const topic = isOwn ? topics.commands : topics.commandsOf(deviceId);
  const expiry = expiresAt && timestampDate(expiresAt).toISOString();
  const payload = JSON.stringify({ correlation_id: correlationId, method, params, expires_at: expiry });
  return { topic, payload, isDelta };
}
