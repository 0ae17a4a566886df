// For tests: MQTT clients of devices, by mqtt.js and by raw bytes.
import { once } from 'node:events';
import { connect as connectSocket, type Socket } from 'node:net';
import mqtt, { type IClientOptions, type MqttClient } from 'mqtt';
import { generate, type Packet, parser } from 'mqtt-packet';
import type { TestDevice, TestLink } from '../../device-link/testing/test-link.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import type { TestProcess } from '../../testing/test-process.ts';

/** A message that has arrived. */
export interface Arrived {
  readonly topic: string;
  readonly payload: Buffer;
  readonly qos: number;
}

/** A device's client, of which everything that arrives is kept. */
export class TestClient {
  readonly client: MqttClient;
  readonly messages: Arrived[] = [];
  /** Reason codes of DISCONNECT packets of the server. */
  readonly disconnects: number[] = [];
  readonly errors: (Error & { code?: number })[] = [];
  isClosed = false;
  sessionPresent = false;

  constructor(url: string, options: IClientOptions) {
    this.client = mqtt.connect(url, { reconnectPeriod: 0, connectTimeout: 20_000, ...options });
    this.client.on('message', (topic, payload, { qos }) => this.messages.push({ topic, payload, qos }));
    this.client.on('disconnect', ({ reasonCode }) => this.disconnects.push(reasonCode ?? 0));
    this.client.on('error', (error) => this.errors.push(error));
    this.client.on('close', () => (this.isClosed = true));
    this.client.on('connect', ({ sessionPresent }) => (this.sessionPresent = sessionPresent));
  }

  async connected(): Promise<this> {
    await eventually(() => {
      if (this.errors[0]) throw this.errors[0];
      return this.client.connected;
    }, 20_000);
    return this;
  }

  /** Waits until the connection is closed, and returns the reason codes of DISCONNECT. */
  async closed(milliseconds = 10_000): Promise<number[]> {
    await eventually(() => this.isClosed, milliseconds);
    return this.disconnects;
  }

  /** Subscribes with QoS 1, below kellet/v1/. */
  async subscribe(...filters: string[]): Promise<this> {
    await this.client.subscribeAsync(
      filters.map((filter) => `kellet/v1/${filter}`),
      { qos: 1 },
    );
    return this;
  }

  /** Publishes below kellet/v1/; resolves once it is acknowledged. Returns the reason code of MQTT 5. */
  async publish(topic: string, payload: unknown, qos: 0 | 1 = 1): Promise<number> {
    const body = Buffer.isBuffer(payload) || typeof payload === 'string' ? payload : JSON.stringify(payload);
    return new Promise((resolve, reject) =>
      this.client.publish(`kellet/v1/${topic}`, body, { qos }, (error, packet) => {
        const code = (error as { code?: number } | undefined)?.code;
        if (error && typeof code !== 'number') reject(error);
        else resolve(code ?? (packet as { reasonCode?: number } | undefined)?.reasonCode ?? 0);
      }),
    );
  }

  /** Waits for a number of messages on a topic below kellet/v1/, and returns their JSON. */
  async received<T = Record<string, unknown>>(topic: string, count = 1, milliseconds = 5000): Promise<T[]> {
    const found = () => this.messages.filter((message) => message.topic === `kellet/v1/${topic}`);
    await eventually(() => found().length >= count, milliseconds).catch((error: unknown) => {
      const seen = this.messages.map(({ topic: other, payload }) => `${other} ${payload.toString()}`).join('\n');
      throw new Error(`no ${count} messages on ${topic}, but:\n${seen}`, { cause: error });
    });
    return found().map(({ payload }) => JSON.parse(payload.toString()) as T);
  }

  /** Cuts the connection, as a lost network does. */
  cut(): void {
    this.client.stream.destroy();
    this.client.end(true);
  }

  async end(): Promise<void> {
    await this.client.endAsync();
  }
}

/** Connects as a device. */
export const connectDevice = (
  link: TestLink,
  device: TestDevice,
  options: IClientOptions & { process?: TestProcess; url?: string } = {},
): TestClient => {
  const { process = link.process, url = `mqtt://127.0.0.1:${process.ports.mqttPort}`, ...others } = options;
  return new TestClient(url, { username: device.deviceId, password: device.key, ...others });
};

/** A connection of raw bytes. */
export class RawClient {
  readonly socket: Socket;
  readonly packets: Packet[] = [];
  bytes = 0;
  isClosed = false;

  constructor(port: number, version: 4 | 5 = 4) {
    this.socket = connectSocket(port, '127.0.0.1');
    const reading = parser({ protocolVersion: version });
    reading.on('packet', (packet) => this.packets.push(packet));
    reading.on('error', () => undefined);
    this.socket.on('data', (chunk: Buffer) => {
      this.bytes += chunk.length;
      reading.parse(chunk);
    });
    this.socket.on('error', () => undefined);
    this.socket.on('close', () => (this.isClosed = true));
  }

  async opened(): Promise<this> {
    if (this.socket.connecting) await once(this.socket, 'connect');
    return this;
  }

  write(bytes: Uint8Array): void {
    this.socket.write(bytes);
  }

  send(packet: Packet, version: 4 | 5 = 4): void {
    this.socket.write(generate(packet, { protocolVersion: version }));
  }

  async closed(milliseconds = 5000): Promise<Packet[]> {
    await eventually(() => this.isClosed, milliseconds);
    return this.packets;
  }

  async packet(count = 1): Promise<Packet> {
    await eventually(() => this.packets.length >= count);
    return this.packets[count - 1]!;
  }
}

/** A CONNECT of a device. */
export const connectPacket = (device: TestDevice, version: 4 | 5 = 4, others: object = {}): Packet => ({
  cmd: 'connect',
  protocolId: 'MQTT',
  protocolVersion: version,
  clean: true,
  clientId: 'raw',
  keepalive: 0,
  username: device.deviceId,
  password: Buffer.from(device.key),
  ...others,
});
