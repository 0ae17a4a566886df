// A simulated device on @kellet/device: claims its identity, sends readings, executes commands and updates itself over
// REST. Tests decide when it polls and how it reacts to updates.
import { createHash } from 'node:crypto';
import type { Schema } from '@kellet/client';
import {
  type Backoff,
  type Command,
  CommandMemory,
  downloadArtifact,
  insist,
  type OtaReport,
  pause,
  pauseMilliseconds,
  refuseImage,
  type Response,
  RestProtocol,
  type Transport,
} from '@kellet/device';
import { parsed, PatientRest, Rest, RestError } from '../clients/rest.ts';
import { applyUpdate, type Behaviour } from './behaviour.ts';
import { ChunkHttp } from './chunk-http.ts';
import { cuttingHttp, sendShared } from './cutting-http.ts';

/** Options of a device before it has an identity. */
export interface DeviceOptions {
  /** Base URL of the API. */
  base: string;
  name: string;
  hardwareId: string;
  behaviour?: Behaviour;
  /** PEM of the key that images must be signed with; without it signatures are not checked. */
  signingKey?: string;
  /** The factory version; reported with a failed download. */
  firmwareVersion?: string;
  /**
   * Breaks the connection in the middle of the chunk that contains this byte of the first artifact, once per number.
   */
  cutAfterBytes?: readonly number[];
  /** Pauses between attempts; by default short ones, with which a large fleet would keep a busy platform from recovering. */
  backoff?: Backoff;
  /** Called with the length of each part of an image; the download continues when it resolves. */
  received?: (bytes: number) => Promise<void>;
}

/** A point without the device it belongs to. */
export interface Reading {
  /** RFC 3339. */
  timestamp: string;
  numeric_values: Record<string, number>;
  string_values: Record<string, string>;
}

/** An update from the device's perspective. */
export interface UpdateRecord {
  rolloutId: string;
  packageId: string;
  version: string;
  /** The reported result; `abandoned` if the package was withdrawn, `silent` if nothing was reported. */
  result: 'success' | 'failure' | 'silent' | 'abandoned';
  /** How often the connection broke during the download. */
  interruptions: number;
  /** Hash of the downloaded image. */
  sha256?: string;
}

const pollSeconds = 25;
const quickBackoff: Backoff = { firstMilliseconds: 200, longestMilliseconds: 2_000 };

/** One device. Its state is in memory only. */
export class SimulatedDevice {
  readonly name: string;
  readonly hardwareId: string;
  /** Every received command in order, including duplicates. */
  readonly commands: Command[] = [];
  /** Every executed command, in order. */
  readonly executed: Command[] = [];
  /** Every update, in order. */
  readonly updates: UpdateRecord[] = [];
  behaviour: Behaviour;
  /** Running firmware version; empty initially. */
  firmwareVersion: string;
  private readonly memory = new CommandMemory();
  private readonly base: string;
  private readonly signingKey: string | undefined;
  private cutAfterBytes: readonly number[];
  private readonly backoff: Backoff;
  private readonly received: ((bytes: number) => Promise<void>) | undefined;
  private claimedId = '';
  private claimedKey = '';

  constructor(options: DeviceOptions) {
    this.base = options.base;
    this.name = options.name;
    this.hardwareId = options.hardwareId;
    this.behaviour = options.behaviour ?? { kind: 'healthy' };
    this.signingKey = options.signingKey;
    this.firmwareVersion = options.firmwareVersion ?? '';
    this.cutAfterBytes = options.cutAfterBytes ?? [];
    this.backoff = options.backoff ?? quickBackoff;
    this.received = options.received;
  }

  /** The device id; empty before the claim. */
  get deviceId(): string {
    return this.claimedId;
  }

  /** The API key; empty before the claim. */
  get apiKey(): string {
    return this.claimedKey;
  }

  /** The API with this device's own key. */
  get rest(): Rest {
    return new Rest(this.base, this.claimedKey);
  }

  /**
   * Claims an identity, and repeats the claim while the platform is unavailable. A repeated claim returns an empty `api_key`, and
   * the device keeps its key. Throws RestError if the claim is rejected.
   */
  async claim(provisionKey: string): Promise<{ device_id: string; api_key: string }> {
    const body = { provision_key: provisionKey, device_name: this.name, hardware_id: this.hardwareId };
    const rest = new PatientRest(this.base);
    const response = await rest.post<{ device_id: string; api_key: string }>('/api/v1/provision', body);
    this.claimedId = response.device_id;
    if (response.api_key) this.claimedKey = response.api_key;
    if (!this.claimedKey) throw new Error('the response to an earlier claim was lost, and the key with it');
    return response;
  }

  /** Sets an identity obtained elsewhere. */
  adopt(identity: { deviceId: string; apiKey: string }): void {
    this.claimedId = identity.deviceId;
    this.claimedKey = identity.apiKey;
  }

  /** Sends readings in one request. Throws RestError if the whole request is rejected. */
  send(readings: readonly Reading[], signal?: AbortSignal): Promise<Schema<'IngestResponse'>> {
    const points = readings.map((reading) => ({ device_id: this.claimedId, ...reading }));
    return this.rest.post<Schema<'IngestResponse'>>('/api/v1/telemetry', { points }, signal);
  }

  /** Polls for commands, waiting at most this long. */
  async poll(waitSeconds: number, signal = new AbortController().signal): Promise<Command[]> {
    const path = `/api/v1/devices/${this.claimedId}/rpc/pending`;
    const reply = await sendShared({
      ...{ method: 'GET', url: `${this.base}${path}?wait_seconds=${waitSeconds}` },
      ...{ headers: { authorization: `Bearer ${this.claimedKey}` }, signal },
    });
    const body = parsed(new TextDecoder().decode(reply.body));
    if (reply.status !== 200) {
      const headers = new Headers({ 'retry-after': reply.header('retry-after') ?? '' });
      throw new RestError(`GET ${path}`, { status: reply.status, headers, body });
    }
    const { commands } = body as { commands: Command[] };
    this.commands.push(...commands);
    return commands;
  }

  /** Executes commands until the signal aborts, retrying while the platform is unavailable. */
  async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted;) {
      try {
        for (const command of await this.poll(pollSeconds, signal)) await this.obey(command, signal);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof RestError && error.status === 401) throw error;
        await pause(pauseMilliseconds(this.backoff, ++failures, error, Math.random()), signal);
      }
    }
  }

  /**
   * Executes a command and responds to it. Commands are delivered at least once: a duplicate gets the earlier response
   * and is not executed again.
   */
  async obey(command: Command, signal: AbortSignal): Promise<void> {
    const { correlation_id: id, method } = command;
    const begun = this.memory.begin(id);
    let response: Response | undefined = begun.kind === 'repeat' ? begun.response : undefined;
    if (begun.kind === 'new') {
      this.executed.push(command);
      try {
        // The report of an update is the response to its command.
        if (method === 'ota_start') await this.update(signal);
        else response = { success: true, response: { method } };
      } catch (error) {
        this.memory.forget(id);
        throw error;
      }
      if (response) this.memory.responded(id, response);
    }
    if (response) await this.insist((transport) => transport.respond(id, response, signal), signal);
  }

  /**
   * Downloads the assigned package, verifies it, installs it and reports. Called by `ota_start`; the report is the
   * response to that command.
   */
  async update(signal: AbortSignal): Promise<UpdateRecord> {
    const assigned = await this.insist((transport) => transport.assignedPackage(signal), signal);
    if (!assigned) throw new Error('ota_start without an assigned package');
    const { package_id: packageId, version, rollout_id: rolloutId } = assigned;
    const record: UpdateRecord = { rolloutId, packageId, version, result: 'silent', interruptions: 0 };
    this.updates.push(record);
    if (this.behaviour.kind === 'silent') return record;
    const hash = createHash('sha256');
    let sizeBytes = 0;
    const socket = new ChunkHttp();
    const isComplete = await downloadArtifact({
      ...{ transport: this.open(cuttingHttp(this.cutAfterBytes, socket.send)), assigned, present: 0 },
      append: async (bytes) => {
        hash.update(bytes);
        sizeBytes += bytes.length;
        await this.received?.(bytes.length);
      },
      insisting: { backoff: this.backoff, signal, onError: () => record.interruptions++ },
    }).finally(() => socket.close());
    this.cutAfterBytes = [];
    if (!isComplete) {
      // Another package was assigned during the download; its command will follow.
      record.result = 'abandoned';
      return record;
    }
    const digest = { sizeBytes, sha256: hash.digest() };
    record.sha256 = digest.sha256.toString('hex');
    const refusal = refuseImage(digest, assigned, this.signingKey === undefined ? [] : [this.signingKey]);
    const result = refusal
      ? { status: 'failure' as const, firmwareVersion: this.firmwareVersion, error: refusal }
      : applyUpdate(this.behaviour, version);
    if (!result) return record;
    this.firmwareVersion = result.firmwareVersion;
    record.result = result.status;
    const { status, firmwareVersion, error } = result;
    const report: OtaReport = { rollout_id: rolloutId, status, firmware_version: firmwareVersion, error };
    await this.insist((transport) => transport.report(report, signal), signal);
    return record;
  }

  private open(send = sendShared): Transport {
    return new RestProtocol(this.base, send).open({ device_id: this.claimedId, api_key: this.claimedKey });
  }

  /** Repeats a call until the platform responds. Refusals are final. */
  private insist<Result>(call: (transport: Transport) => Promise<Result>, signal: AbortSignal): Promise<Result> {
    const transport = this.open();
    return insist(() => call(transport), { backoff: this.backoff, signal });
  }
}
