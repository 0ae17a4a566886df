// Opens a device whose state is in a folder: identity, points that wait, and images.
import path from 'node:path';
import { defaultBackoff } from './backoff.ts';
import { Device, type DeviceBehaviour, type DeviceParts } from './device.ts';
import { identityOf } from './identity/claim.ts';
import { FileKeyStore } from './identity/file-key-store.ts';
import { MemoryKeyStore } from './identity/key-store.ts';
import type { Child, Claim, Identity } from './messages.ts';
import { FileBuffer, type FileBufferOptions } from './telemetry/file-buffer.ts';
import { type ConnectionOptions, openProtocol } from './transports/open.ts';
import { FileSlots, type FileSlotsOptions } from './update/file-slots.ts';

/** Settings of a device. */
export interface OpenOptions
  extends DeviceBehaviour, ConnectionOptions, Pick<DeviceParts, 'batchPoints' | 'confirmSeconds' | 'backoff'> {
  /** Address of the platform, which chooses the protocol: `https://…`, `grpcs://…`, `mqtts://…` or `wss://…`. */
  url: string;
  /** Folder of the device's state, which no other process uses. */
  folder: string;
  /** How to claim an identity if the folder has none. */
  claim?: Claim | undefined;
  /** An identity that is kept elsewhere; the folder then has none. */
  identity?: Identity | undefined;
  /** Settings of the buffer on disk. */
  buffer?: FileBufferOptions | undefined;
  /** Settings of updates. Without them the device has none. */
  updates?: FileSlotsOptions | undefined;
  /** Ends the claim. */
  signal?: AbortSignal | undefined;
}

/** Opens a device: claims an identity if it has none, which waits until the platform can be reached. */
export async function openDevice(options: OpenOptions): Promise<Device> {
  const { url, folder, claim, identity: given, buffer, updates, signal, ...rest } = options;
  const protocol = await openProtocol(url, options);
  const insisting = {
    backoff: options.backoff ?? defaultBackoff,
    signal: signal ?? new AbortController().signal,
    onError: options.onError,
  };
  const store = given ? new MemoryKeyStore(given) : new FileKeyStore(path.join(folder, 'identity.json'));
  try {
    const identity = await identityOf(store, protocol, claim, insisting);
    const transport = protocol.open(identity);
    const closeTransport = transport.close.bind(transport);
    transport.close = async () => {
      await closeTransport();
      await protocol.close();
    };
    return new Device({
      ...rest,
      ...{ identity, transport },
      buffer: new FileBuffer(path.join(folder, 'telemetry'), buffer),
      slots: updates && new FileSlots(path.join(folder, 'slots'), updates),
    });
  } catch (error) {
    await protocol.close();
    throw error;
  }
}

/** Settings of a child of a gateway. */
export interface ChildOptions extends DeviceBehaviour, Pick<DeviceParts, 'batchPoints' | 'confirmSeconds' | 'backoff'> {
  /** Folder of the child's state, which no other device uses. */
  folder: string;
  child: Child;
  buffer?: FileBufferOptions | undefined;
  updates?: FileSlotsOptions | undefined;
  /** Ends the attempts to connect it. */
  signal?: AbortSignal | undefined;
}

/** Connects a child through a gateway, as `Device.connectChild` does, with its state in a folder. */
export async function openChild(gateway: Device, options: ChildOptions): Promise<Device> {
  const { folder, child, buffer, updates, ...rest } = options;
  const points = new FileBuffer(path.join(folder, 'telemetry'), buffer);
  try {
    const slots = updates && new FileSlots(path.join(folder, 'slots'), updates);
    return await gateway.connectChild(child, { ...rest, buffer: points, slots });
  } catch (error) {
    points.close();
    throw error;
  }
}
