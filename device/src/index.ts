// @kellet/device: a device of Kellet, with its state in a folder.
export * from './core.ts';
export { FileKeyStore } from './identity/file-key-store.ts';
export { openChild, openDevice, type ChildOptions, type OpenOptions } from './open-device.ts';
export { FileBuffer, type FileBufferOptions } from './telemetry/file-buffer.ts';
export { nodeHttp } from './transports/node-http.ts';
export { openProtocol, type ConnectionOptions } from './transports/open.ts';
export { FileSlots, startImage, type FileSlotsOptions } from './update/file-slots.ts';
export { refuseImage, type ImageDigest } from './update/image-check.ts';
export { downloadArtifact, type Download } from './update/updater.ts';
