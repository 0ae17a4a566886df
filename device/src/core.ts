// @kellet/device/core: the parts that also run in browsers: the device, REST by fetch, and buffers in memory.
export { defaultBackoff, insist, pause, pauseMilliseconds, type Backoff, type Insisting } from './backoff.ts';
export { CommandMemory } from './commands/command-memory.ts';
export { Device, pointOf, type ChildParts, type DeviceBehaviour, type DeviceParts, type Values } from './device.ts';
export { DeviceError, reactionTo, type Reaction } from './errors.ts';
export { identityOf } from './identity/claim.ts';
export { MemoryKeyStore, type KeyStore } from './identity/key-store.ts';
export * from './messages.ts';
export { MemoryBuffer, type Batch, type TelemetryBuffer } from './telemetry/buffer.ts';
export { RestProtocol, sendByFetch, type HttpRequest, type HttpResponse, type SendHttp } from './transports/rest.ts';
export type { Listener, Protocol, TlsOptions, Transport } from './transports/transport.ts';
export type { SlotStore } from './update/slot-store.ts';
export type { Image, Slot, SlotState } from './update/slots.ts';
