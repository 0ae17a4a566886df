// Where MQTT connections come from: TCP, TLS and the WebSocket at /mqtt of the REST port; and the limits on them.
import type { IncomingMessage, Server as HttpServer } from 'node:http';
import { createServer, type Server, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { LRUCache } from 'lru-cache';
import { createWebSocketStream, type WebSocket, WebSocketServer } from 'ws';
import type { DeviceProof } from '../auth/credentials/device-proof.ts';
import type { PreSharedKeys } from '../auth/device-credentials/pre-shared-keys.ts';
import { MessagePace } from '../device-link/streams/message-pace.ts';
import { plainAddress } from '../gateway/admission/authorize.ts';
import { addressOfRequest } from '../gateway/admission/client-address.ts';
import { certificateOfPeer, proofOfRequest } from '../gateway/admission/connection-proof.ts';
import type { Entrance } from '../gateway/gateway.ts';
import { endConnection } from '../gateway/http/http-server.ts';
import { MemoryBudget } from '../gateway/memory/memory-budget.ts';
import { Acceptors } from '../platform/addresses/acceptors.ts';
import { addressBlock } from '../platform/addresses/address-block.ts';
import { limitConnections } from '../platform/addresses/limit-connections.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import type { ErrorCode } from '../platform/errors.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { counter, readGauge, type Registry } from '../platform/observability/metrics.ts';
import type { TlsFiles } from '../platform/tls/tls-files.ts';
import { createTlsListener } from '../platform/tls/tls-listener.ts';
import { Connection, connectionLimits, type ConnectionParts, type Peer, waitingWillBytes } from './connection.ts';
import { DeviceCalls } from './device-calls.ts';
import { reasons } from './packets.ts';
import { PskHandshakes } from './psk-handshakes.ts';
import { Sessions } from './sessions.ts';

/** Maximum connections of clients that have not shown which device they are: in total, and per address (IPv6: /64). */
const strangerLimits = { total: 1000, ofAddress: 100 } as const;

/** Devices whose rate is remembered. */
const maxPaces = 200_000;

/** Connections that are closed at a time when the server stops. */
const maxClosing = 500;

/** Overhead of WebSocket frames before a CONNECT is complete. */
const frameOverheadBytes = 16 * 1024;

/**
 * Small WebSocket messages a second of a client, for each MQTT message that it may send in a second. Each costs some microseconds,
 * however little of an MQTT packet it carries.
 */
const smallPerPacket = 5;
const smallBytes = 64;

/** WebSocket pings a second of a client, and the bytes that it has not read at which it gets no pong. */
const pingsPerSecond = 10;
const unreadPongBytes = 16 * 1024;

type Transport = 'tcp' | 'tls' | 'websocket';

/** Settings. */
export interface MqttSettings {
  readonly listenHost: string;
  readonly port: number;
  readonly tlsPort: number;
  readonly rate: number;
  readonly maximumConnections: number;
  readonly drainMilliseconds: number;
}

/** Dependencies. */
export interface MqttParts {
  readonly entrance: Entrance;
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly httpServer: HttpServer;
  /** The certificate of the TLS port; undefined without that port. */
  readonly tls: TlsFiles | undefined;
  readonly preSharedKeys: PreSharedKeys;
  readonly settings: MqttSettings;
}

/** The MQTT endpoint of a process. */
export class MqttListeners {
  private readonly parts: MqttParts;
  private readonly connectionParts: ConnectionParts;
  private readonly sessions: Sessions;
  private readonly open = new Map<Connection, Transport>();
  private readonly strangers = new Map<Connection, string>();
  /** Take the connections of the ports. */
  private readonly tcp: Server;
  private readonly tls: Server | undefined;
  private readonly acceptors: Readonly<Record<'tcp' | 'tls', Acceptors>>;
  private readonly webSockets = new WebSocketServer({
    noServer: true,
    handleProtocols: (offered) => (offered.has('mqtt') ? 'mqtt' : false),
    maxPayload: connectionLimits.packetBytes + frameOverheadBytes,
    // A message in many fragments takes more memory than its bytes.
    maxFragments: 1024,
    maxBufferedChunks: 1024,
    perMessageDeflate: false,
    // Automatic pongs would queue without bound for a client that does not read.
    autoPong: false,
    // Others run between the messages of one read, of which it may hold ten thousand.
    allowSynchronousEvents: false,
  });
  private isClosed = false;

  constructor(parts: MqttParts) {
    const { entrance, database, clock, metrics, settings } = parts;
    const logger = parts.logger.child({ component: 'mqtt' });
    this.parts = { ...parts, logger };
    this.sessions = new Sessions(database, logger);
    const connects = counter(metrics, 'kellet_mqtt_connects_total', 'MQTT connections by the response to CONNECT.', [
      'code',
    ]);
    const ends = counter(metrics, 'kellet_mqtt_disconnects_total', 'Ended MQTT connections of devices by reason.', [
      'reason',
    ]);
    readGauge(
      { metrics, logger },
      'kellet_mqtt_connections',
      'Open MQTT connections by transport.',
      () => this.counts(),
      'transport',
    );
    this.connectionParts = {
      ...{ entrance, sessions: this.sessions, wills: willBudget(settings), logger, rate: settings.rate },
      calls: new DeviceCalls(entrance, clock, logger),
      paces: new LRUCache<string, MessagePace>({ max: maxPaces }),
      byDevice: new Map(),
      judged: (code: ErrorCode | 'OK') => connects.inc({ code }),
      ended: (reason) => ends.inc({ reason: reasonNames.get(reason) ?? 'other' }),
    };
    this.tcp = createServer((socket) => this.accept(socket, 'tcp'));
    limitConnections(this.tcp, settings.maximumConnections);
    const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 };
    this.acceptors = {
      tcp: new Acceptors(options, (socket) => this.tcp.emit('connection', socket)),
      tls: new Acceptors(options, (socket) => this.tls?.emit('connection', socket)),
    };
    if (!parts.tls) return;
    const psk = new PskHandshakes(parts.preSharedKeys);
    this.tls = createTlsListener(
      parts.tls,
      {
        ...psk.options,
        connections: settings.maximumConnections,
        handshakeTimeout: connectionLimits.connectMilliseconds,
      },
      logger,
      (socket) => this.accept(socket, 'tls', psk.proofOf(socket) ?? certificateOfPeer(socket)),
    );
  }

  /** Listens, and returns the ports; that of TLS is undefined without a certificate. */
  async start(): Promise<{ mqttPort: number; mqttTlsPort?: number }> {
    const { settings, httpServer } = this.parts;
    this.sessions.start();
    httpServer.on('upgrade', this.onUpgrade);
    const { listenHost, port, tlsPort } = settings;
    const mqttPort = await this.acceptors.tcp.listen(port, listenHost);
    return this.tls ? { mqttPort, mqttTlsPort: await this.acceptors.tls.listen(tlsPort, listenHost) } : { mqttPort };
  }

  /** Closes the ports, and the connections once what they have sent is processed. */
  async close(): Promise<void> {
    this.isClosed = true;
    this.parts.httpServer.off('upgrade', this.onUpgrade);
    for (const acceptors of Object.values(this.acceptors)) void acceptors.close();
    const end = performance.now() + this.parts.settings.drainMilliseconds;
    const connections = [...this.open.keys()];
    for (let at = 0; at < connections.length; at += maxClosing) {
      const left = Math.max(0, end - performance.now());
      await Promise.all(connections.slice(at, at + maxClosing).map((connection) => connection.drain(left)));
    }
    this.webSockets.close();
    await this.sessions.stop();
  }

  private counts(): Map<string, number> {
    const counts = new Map<string, number>([...(['tcp', 'tls', 'websocket'] as const)].map((name) => [name, 0]));
    for (const transport of this.open.values()) counts.set(transport, counts.get(transport)! + 1);
    return counts;
  }

  private accept(socket: Socket, transport: Transport, proof?: DeviceProof): void {
    this.take(socket, transport, { address: plainAddress(socket.remoteAddress ?? ''), proof });
  }

  /** Takes a connection, unless its address has too many strangers, or all have and no other has more. */
  private take(stream: Duplex, transport: Transport, peer: Peer): Connection | undefined {
    const block = addressBlock(peer.address);
    if (this.isClosed || !this.hasRoom(block)) {
      stream.on('error', () => undefined).destroy();
      return undefined;
    }
    const connection = new Connection(this.connectionParts, stream, peer);
    this.open.set(connection, transport);
    this.strangers.set(connection, block);
    stream.once('close', () => {
      this.open.delete(connection);
      this.strangers.delete(connection);
    });
    return connection;
  }

  /** Reports whether there is room for a stranger, if need be after closing one of the address with the most. */
  private hasRoom(block: string): boolean {
    if (this.strangers.size === 0) return true;
    const byBlock = new Map<string, Connection[]>([[block, []]]);
    for (const [connection, other] of this.strangers) {
      if (!connection.isStranger) this.strangers.delete(connection);
      else if (!byBlock.get(other)?.push(connection)) byBlock.set(other, [connection]);
    }
    const own = byBlock.get(block)!;
    if (own.length >= strangerLimits.ofAddress) return false;
    if (this.strangers.size < strangerLimits.total) return true;
    let largest = own;
    for (const others of byBlock.values()) if (others.length > largest.length) largest = others;
    // Of the same size after the new one has come.
    if (largest.length <= own.length + 1) return false;
    // The oldest comes first; one that is being judged, or claims, is about to be none.
    const least = largest.find((connection) => !connection.isBusy) ?? largest[0]!;
    this.strangers.delete(least);
    least.makeRoom();
    return true;
  }

  /** Any origin may connect: a page holds no credential of a device that the browser would add by itself. */
  private readonly onUpgrade = (request: IncomingMessage, stream: Duplex, head: Buffer): void => {
    if (!/^\/mqtt(\?|$)/.test(request.url ?? '')) return;
    const { addressOf, proofOf } = this.parts.entrance;
    const peer = { address: addressOfRequest(addressOf, request), proof: proofOfRequest(proofOf, request) };
    const offered = (request.headers['sec-websocket-protocol'] ?? '').split(',').map((name) => name.trim());
    if (request.method !== 'GET' || !offered.includes('mqtt')) {
      endConnection(stream, 'HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n');
      return;
    }
    const refuse = (): void => {
      endConnection(stream, 'HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n');
    };
    this.webSockets.once('wsClientError', refuse);
    this.webSockets.handleUpgrade(request, stream, head, (socket) => {
      const duplex = createWebSocketStream(socket, { readableObjectMode: false });
      const connection = this.take(duplex, 'websocket', peer);
      if (connection) boundMessages(socket, stream, connection, this.parts.settings.rate);
    });
    this.webSockets.off('wsClientError', refuse);
  };
}

/**
 * Counts what a WebSocket message holds until it is complete: for a stranger that is little, for a device it belongs to the
 * memory of its tenant. A client that sends very many small messages is dismissed. Pings get pongs as long as the client reads
 * them and sends few.
 */
function boundMessages(socket: WebSocket, raw: Duplex, connection: Connection, rate: number): void {
  let ofStranger = 0;
  let held = 0;
  // Before the library takes them: what is left of a piece after a message is little.
  raw.prependListener('data', (chunk: Buffer) => {
    held += chunk.length;
    ofStranger += chunk.length;
    if (connection.isStranger && ofStranger > connectionLimits.strangerBytes + frameOverheadBytes) socket.terminate();
    else connection.holdOutside(held);
  });
  const small = new MessagePace(smallPerPacket * rate, performance.now());
  socket.on('message', (data: Buffer) => {
    connection.holdOutside((held = 0));
    if (data.length < smallBytes && small.take(performance.now()) > 0) socket.terminate();
  });
  const pace = new MessagePace(pingsPerSecond, performance.now());
  socket.on('ping', (data) => {
    if (pace.take(performance.now()) > 0) socket.terminate();
    else if (socket.bufferedAmount < unreadPongBytes) socket.pong(data);
  });
}

/** As many wills may wait as there may be connections; half of them of one tenant. */
function willBudget({ maximumConnections }: MqttSettings): MemoryBudget {
  const total = maximumConnections * waitingWillBytes;
  return new MemoryBudget({ total, perOwner: total / 2 });
}

const reasonNames: ReadonlyMap<number, string> = new Map(
  Object.entries(reasons).map(([name, code]) => [code, name] as const),
);
