// Evaluates a CONNECT on its own: returns what the client requests, within the limits, or refuses it.
import { createHash } from 'node:crypto';
import type { IConnectPacket } from 'mqtt-packet';
import type { Version } from './packets.ts';
import { type Action, actionOf } from './topics.ts';

/** Limits that the server sets. */
const connectLimits = {
  /** Maximum time that a session is kept without a connection, and that of MQTT 3.1.1 without clean session. */
  sessionSeconds: 86_400,
  /** Longer client ids are allowed, but only their digest is kept, so that connections and sessions stay small. */
  clientIdCharacters: 256,
  willBytes: 64 * 1024,
} as const;

/** The user name with which a device without an identity claims one. */
export const claimUsername = 'provision';

/** Published for the device when its connection is lost. */
export interface Will {
  readonly topic: string;
  readonly action: Action;
  readonly payload: Buffer;
  readonly contentType: string;
  readonly delaySeconds: number;
}

/** What a client requests. */
export interface ConnectRequest {
  readonly version: Version;
  /** Empty if there is none. */
  readonly username: string;
  /** Empty for a client that has proven to be a device. */
  readonly password: string;
  /** Identifies the client among those of its device: the client id, or the digest of a long one. */
  readonly clientId: string;
  /** Whether an earlier session is discarded. */
  readonly isClean: boolean;
  /** Seconds that the session is kept after the connection, already limited. */
  readonly expirySeconds: number;
  /** Whether the client requested a longer one. */
  readonly isExpiryShortened: boolean;
  /** Messages with QoS 1 that the client accepts unacknowledged. */
  readonly receiveMaximum: number;
  /** Bytes of a packet that the client accepts. */
  readonly maximumPacketBytes: number;
  /** Seconds; 0: none. */
  readonly keepAliveSeconds: number;
  readonly will: Will | undefined;
}

/**
 * Returns what the client requests, or undefined if it is refused. A client that has proven in the TLS handshake to be a
 * device (`isProven`) needs no password, and then no user name either; one that claims an identity needs no password.
 */
export function decideConnect(packet: IConnectPacket, isProven = false): ConnectRequest | undefined {
  const { protocolVersion: version, protocolId, username = '', properties = {} } = packet;
  const clientId = shortClientId(packet.clientId);
  const password = packet.password?.toString('utf8') ?? '';
  if (protocolId !== 'MQTT' || (version !== 4 && version !== 5)) return undefined;
  // A bridge to another broker sets a bit that the parser takes off the version.
  if ((packet as { bridgeMode?: boolean }).bridgeMode === true) return undefined;
  if (password === '' && username !== claimUsername && !isProven) return undefined;
  if (password !== '' && username === '') return undefined;
  if (packet.clientId.includes('\0')) return undefined;
  const isClean = packet.clean === true;
  // Without a client id there is nothing by which a session could be found again (MQTT 3.1.1, 3.1.3.1).
  if (version === 4 && clientId === '' && !isClean) return undefined;
  if (properties.authenticationMethod !== undefined) return undefined;
  const receiveMaximum = properties.receiveMaximum ?? 65_535;
  const maximumPacketBytes = properties.maximumPacketSize ?? Infinity;
  const asked = version === 5 ? (properties.sessionExpiryInterval ?? 0) : isClean ? 0 : connectLimits.sessionSeconds;
  // A property that is given twice arrives as a list.
  const numbers: unknown[] = [receiveMaximum, maximumPacketBytes, asked];
  if (!numbers.every((value) => typeof value === 'number') || receiveMaximum < 1 || maximumPacketBytes < 1) {
    return undefined;
  }
  const will = packet.will && decideWill(packet.will, version);
  if (packet.will && !will) return undefined;
  const expirySeconds = Math.min(asked, connectLimits.sessionSeconds);
  return {
    ...{ version, username, password, clientId, isClean, expirySeconds, receiveMaximum },
    ...{ isExpiryShortened: version === 5 && expirySeconds < asked, maximumPacketBytes },
    keepAliveSeconds: packet.keepalive ?? 0,
    will: will && { ...will, delaySeconds: Math.min(will.delaySeconds, expirySeconds) },
  };
}

function shortClientId(clientId: string): string {
  if (clientId.length <= connectLimits.clientIdCharacters) return clientId;
  return `sha256:${createHash('sha256').update(clientId).digest('hex')}`;
}

/** A will is a message that the device could publish itself. */
function decideWill(will: NonNullable<IConnectPacket['will']>, version: Version): Will | undefined {
  const { topic, properties = {} } = will;
  const payload = Buffer.from(will.payload);
  const action = actionOf(topic);
  if (!action || action.kind === 'claim' || payload.length > connectLimits.willBytes) return undefined;
  // MQTT 3.1.1 has no way to tell that nothing is retained.
  if ((will.qos ?? 0) > 1 || (will.retain === true && version === 5)) return undefined;
  const delaySeconds = properties.willDelayInterval ?? 0;
  const contentType = properties.contentType ?? '';
  if (typeof delaySeconds !== 'number' || typeof contentType !== 'string') return undefined;
  return { topic, action, payload, contentType, delaySeconds };
}
