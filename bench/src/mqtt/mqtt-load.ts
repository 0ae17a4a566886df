// Publishes with QoS 1 from a process of its own, so that its cost is not measured.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';

/** Load options. */
export interface MqttLoadOptions {
  readonly port: number;
  readonly topic: string;
  /** A connection is opened for each. */
  readonly devices: readonly { readonly username: string; readonly password: string }[];
  /** Of each device, sent in turn. */
  readonly payloads: readonly (readonly string[])[];
  /** Messages of a connection that wait for their acknowledgement. */
  readonly window: number;
  readonly seconds: number;
}

/** Result. */
export interface MqttLoadResult {
  readonly acknowledged: number;
  readonly perSecond: number;
  /** Latencies from a message to its PUBACK in milliseconds. */
  readonly p50: number;
  readonly p99: number;
  /** CPU time of the generator per second. */
  readonly cores: number;
}

/** Runs a load. Rejects for anything but PUBACKs, and if the server closes a connection. */
export async function publishAll(options: MqttLoadOptions): Promise<MqttLoadResult> {
  const child: ChildProcess = fork(join(import.meta.dirname, 'mqtt-load-process.ts'), { serialization: 'advanced' });
  const failed = once(child, 'exit').then(() => {
    throw new Error('the MQTT load generator has failed');
  });
  failed.catch(() => undefined);
  child.send(options);
  const [result] = (await Promise.race([once(child, 'message'), failed])) as [MqttLoadResult];
  child.disconnect();
  return result;
}
