// The messages between a device and the platform, with the names of the contract.

/** The identity of a device. */
export interface Identity {
  device_id: string;
  api_key: string;
}

/** A request for an identity. */
export interface Claim {
  /** Key of a provisioning template. */
  provision_key: string;
  /** Name of a new device. */
  device_name?: string;
  /** Never changes; the same `hardware_id` is the same device. */
  hardware_id: string;
}

/** A device that is connected through a gateway. */
export interface Child {
  /** Never changes; the same `hardware_id` is the same device. */
  hardware_id: string;
  /** Name of a new device. */
  device_name?: string;
  /** Profile of a new device. */
  profile_id?: string;
}

/** Measured values at a time. */
export interface Point {
  /** RFC 3339. */
  timestamp: string;
  numeric_values?: Record<string, number>;
  string_values?: Record<string, string>;
}

/** Why the platform has not stored a point. */
export interface PointError {
  /** Position in the request. */
  index?: number;
  code: string;
  message: string;
}

/** The platform's response to points. Accepted ones are stored. */
export interface Ingested {
  accepted: number;
  rejected: number;
  /** At most 100. Over MQTT only the first, without its position; there may be more. */
  errors: readonly PointError[];
}

/** A JSON object. */
export type JsonObject = Record<string, unknown>;

/** A command of the platform. */
export interface Command {
  correlation_id: string;
  method: string;
  params?: JsonObject;
}

/** Response to a command. */
export interface Response {
  success: boolean;
  response?: JsonObject;
  error?: string;
}

/** The attributes that a device sees. */
export interface Attributes {
  client: Record<string, { value: unknown; updated_at: string }>;
  shared: Record<string, { value: unknown; updated_at: string }>;
}

/** A change of shared attributes. */
export interface AttributeChange {
  changed: JsonObject;
  removed: readonly string[];
}

/** The package that a device is to install. */
export interface AssignedPackage {
  package_id: string;
  version: string;
  size_bytes: number;
  /** 64 hex digits. */
  sha256: string;
  /** Base64, Ed25519 over the artifact's SHA-256 digest; empty if it is not signed. */
  signature: string;
  /** Empty if the package is assigned only to this device. */
  rollout_id: string;
}

/** A report on an update: its result, or without `status` its progress. */
export interface OtaReport {
  rollout_id: string;
  firmware_version?: string;
  status?: 'success' | 'failure';
  error?: string;
  progress_percent?: number;
}

/** Longest range of an artifact in one request. */
export const chunkBytes = 65_536;
