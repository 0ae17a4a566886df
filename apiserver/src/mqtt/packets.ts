// MQTT packets to and from bytes (mqtt-packet), one complete packet at a time, and the reason codes in use.
import { generate, type IConnectPacket, type Packet, type Parser, parser } from 'mqtt-packet';

/** The protocol levels: 4 is MQTT 3.1.1, 5 is MQTT 5. */
export type Version = 4 | 5;

/** Reason codes of MQTT 5 (OASIS MQTT 5.0, 2.4). */
export const reasons = {
  success: 0x00,
  withWill: 0x04,
  noSubscription: 0x11,
  unspecified: 0x80,
  malformedPacket: 0x81,
  protocolError: 0x82,
  notAuthorized: 0x87,
  serverUnavailable: 0x88,
  serverBusy: 0x89,
  serverShuttingDown: 0x8b,
  keepAliveTimeout: 0x8d,
  sessionTakenOver: 0x8e,
  topicNameInvalid: 0x90,
  topicAliasInvalid: 0x94,
  packetTooLarge: 0x95,
  messageRateTooHigh: 0x96,
  quotaExceeded: 0x97,
  payloadFormatInvalid: 0x99,
  retainNotSupported: 0x9a,
  qosNotSupported: 0x9b,
  connectionRateExceeded: 0x9f,
  subscriptionIdentifiersNotSupported: 0xa1,
} as const;

/** Reason codes of DISCONNECT: `serverUnavailable` and the codes of single messages are none, and clients take them for an error. */
export type DisconnectReason = Exclude<
  (typeof reasons)[keyof typeof reasons],
  (typeof reasons)['serverUnavailable' | 'noSubscription']
>;

/** Return codes of CONNACK in MQTT 3.1.1. */
export const returnCodes = { accepted: 0, unavailable: 3, notAuthorized: 5 } as const;

/** The bytes are not a packet of the protocol. */
export class MalformedPacket extends Error {}

/** Parses single packets of one protocol level. Shared by all connections, because it keeps nothing between packets. */
class PacketParser {
  private readonly version: Version | undefined;
  private current: Parser;
  private packet: Packet | undefined;
  private failure: Error | undefined;

  constructor(version: Version | undefined) {
    this.version = version;
    this.current = this.create();
  }

  /** Returns the packet of a frame. Throws MalformedPacket. */
  parse(frame: Buffer): Packet {
    this.packet = undefined;
    this.failure = undefined;
    let rest = 0;
    try {
      rest = this.current.parse(frame);
    } catch (error) {
      this.failure = error as Error;
    }
    // The parser keeps a CONNECT, with its password, so it is replaced after one.
    const mustRenew = this.failure !== undefined || rest > 0 || this.version === undefined;
    if (mustRenew) this.current = this.create();
    const { packet } = this;
    this.packet = undefined;
    if (this.failure !== undefined || rest > 0 || !packet) {
      throw new MalformedPacket(this.failure?.message ?? 'the packet is malformed');
    }
    return packet;
  }

  private create(): Parser {
    const created = parser(this.version === undefined ? {} : { protocolVersion: this.version });
    created.on('packet', (packet) => (this.packet = packet));
    created.on('error', (error: Error) => (this.failure ??= error));
    return created;
  }
}

const first = new PacketParser(undefined);
const parsers = { 4: new PacketParser(4), 5: new PacketParser(5) } as const;

/** Parses the first packet of a connection. Throws MalformedPacket for anything but CONNECT. */
export function parseConnect(frame: Buffer): IConnectPacket {
  const packet = first.parse(frame);
  if (packet.cmd !== 'connect') throw new MalformedPacket('the first packet must be CONNECT');
  return packet;
}

/** Parses a later packet. Throws MalformedPacket. */
export const parsePacket = (frame: Buffer, version: Version): Packet => parsers[version].parse(frame);

/** Returns the bytes of a packet. */
export const packetBytes = (packet: Packet, version: Version): Buffer => generate(packet, { protocolVersion: version });

/** Reports whether a frame is a CONNECT, malformed or not. */
export const isConnect = (frame: Buffer): boolean => frame[0]! >> 4 === 1;

/**
 * Returns the bytes of a frame that are parsed one by one: of a PUBLISH the properties, of other packets all. Of a malformed frame
 * it may return anything.
 */
export function headBytes(frame: Buffer, version: Version): number {
  if (frame[0]! >> 4 !== 3) return frame.length;
  if (version === 4) return 0;
  let at = 1;
  while (frame[at]! & 0x80) at += 1;
  at += 1;
  // The topic, and the packet id of QoS 1 and 2.
  at += 2 + (frame.length >= at + 2 ? frame.readUInt16BE(at) : 0) + ((frame[0]! & 0x06) === 0 ? 0 : 2);
  let bytes = 0;
  for (let digit = 0; digit < 4; digit += 1, at += 1) {
    bytes += ((frame[at] ?? 0) & 0x7f) * 128 ** digit;
    if (((frame[at] ?? 0) & 0x80) === 0) break;
  }
  return bytes;
}

/** Returns the protocol version for the response to a CONNECT that cannot be parsed. */
export function versionOfConnect(frame: Buffer): Version {
  const name = frame.indexOf('MQTT');
  return name > 0 && name < 8 && frame[name + 4] === 5 ? 5 : 4;
}
