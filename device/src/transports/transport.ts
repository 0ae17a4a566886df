// What a device needs of a protocol. REST, gRPC and MQTT each implement it; a setting chooses one.
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

/** Receives what the platform sends. */
export interface Listener {
  /** Called when the connection was opened, or opened again after a loss. */
  onReady(): void;
  onCommand(command: Command): void;
}

/** Calls of a device. Each throws a DeviceError if the platform refuses it or cannot be reached. */
export interface Transport {
  /** Resolves once the points are stored. A request that is repeated with its key is not stored twice. */
  send(points: readonly Point[], requestKey: string, signal: AbortSignal): Promise<Ingested>;
  /** Receives commands until the connection is lost, which throws, or until the signal aborts. */
  listen(listener: Listener, signal: AbortSignal): Promise<void>;
  respond(correlationId: string, response: Response, signal: AbortSignal): Promise<void>;
  getAttributes(signal: AbortSignal): Promise<Attributes>;
  /** Sets attributes of the scope `client`; null removes one. */
  setAttributes(changes: JsonObject, signal: AbortSignal): Promise<void>;
  /** Returns the package to install, or undefined. */
  assignedPackage(signal: AbortSignal): Promise<AssignedPackage | undefined>;
  /** Returns a range of the assigned package's artifact, of at most `chunkBytes`. */
  chunk(packageId: string, offset: number, length: number, signal: AbortSignal): Promise<Uint8Array>;
  report(report: OtaReport, signal: AbortSignal): Promise<void>;
  /** Connects a child to this gateway, creates it if it does not exist, and returns its id. */
  connectChild(child: Child, signal: AbortSignal): Promise<string>;
  disconnectChild(deviceId: string, signal: AbortSignal): Promise<void>;
  /** Returns the calls of a connected child. They use the key and the connection of this gateway. */
  child(deviceId: string): Transport;
  close(): Promise<void>;
}

/** A protocol with its address. The devices of a process share its sockets where the protocol allows it. */
export interface Protocol {
  /** Claims an identity. `api_key` is empty if this hardware has claimed before. */
  claim(claim: Claim, signal: AbortSignal): Promise<Identity>;
  /** Returns the calls of a device. Connects when it is used. */
  open(identity: Identity): Transport;
  close(): Promise<void>;
}

/** Certificates as PEM, for addresses with TLS. */
export interface TlsOptions {
  /** Issuers of the platform's certificate, in place of the well-known ones. */
  ca?: string;
  /** Certificate of the device, if the platform asks for one. */
  cert?: string;
  /** Private key of that certificate. */
  key?: string;
}

/** Time for one call, in milliseconds. */
export const callMilliseconds = 30_000;
