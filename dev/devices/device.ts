// A simulated device: claims its identity, sends readings, executes commands and updates itself, using only REST.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Schema } from '@kellet/client';
import type { RestResponse } from '../clients/rest.ts';
import { Rest, RestError } from '../clients/rest.ts';
import type { Behaviour } from './behaviour.ts';
import { applyUpdate } from './behaviour.ts';
import { CommandMemory } from './command-memory.ts';
import { downloadArtifact, DownloadRefused } from './download.ts';
import { refuseImage } from './image.ts';

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
}

/** A point without the device it belongs to. */
export interface Reading {
  /** RFC 3339. */
  timestamp: string;
  numeric_values: Record<string, number>;
  string_values: Record<string, string>;
}

/** A command as delivered by the platform. */
export interface Command {
  correlation_id: string;
  method: string;
  params?: Record<string, unknown>;
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
}

const pollSeconds = 25;
const maxPauseMilliseconds = 2_000;
/** Bytes between two progress reports. */
const progressBytes = 512 * 1024;

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
   * Claims an identity. A repeated claim returns an empty `api_key`, and the device keeps its key.
   * @throws RestError if the claim is rejected
   */
  async claim(provisionKey: string): Promise<{ device_id: string; api_key: string }> {
    const body = { provision_key: provisionKey, device_name: this.name, hardware_id: this.hardwareId };
    const response = await new Rest(this.base).post<{ device_id: string; api_key: string }>('/api/v1/provision', body);
    this.claimedId = response.device_id;
    if (response.api_key) this.claimedKey = response.api_key;
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
  async poll(waitSeconds: number, signal?: AbortSignal): Promise<Command[]> {
    const path = `/api/v1/devices/${this.claimedId}/rpc/pending`;
    const { commands } = await this.rest.get<{ commands: Command[] }>(path, { wait_seconds: waitSeconds }, signal);
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
        await this.pause(++failures, signal);
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
    let response = begun.kind === 'repeat' ? begun.response : undefined;
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
    if (response) await this.insist('POST', `/api/v1/devices/rpc/${id}/response`, response, signal);
  }

  /**
   * Downloads the assigned package, verifies it, installs it and reports. Called by `ota_start`; the report is the
   * response to that command.
   */
  async update(signal: AbortSignal): Promise<UpdateRecord> {
    const assigned = await this.insist<Schema<'AssignedPackage'>>(
      'GET',
      `/api/v1/devices/${this.claimedId}/ota`,
      undefined,
      signal,
    );
    const { package_id: packageId, version, rollout_id: rolloutId } = assigned;
    const record: UpdateRecord = { rolloutId, packageId, version, result: 'silent', interruptions: 0 };
    this.updates.push(record);
    if (this.behaviour.kind === 'silent') return record;
    const cutAfterBytes = this.cutAfterBytes;
    this.cutAfterBytes = [];
    let reported = 0;
    try {
      const { image, interruptions } = await downloadArtifact({
        ...{ base: this.base, apiKey: this.claimedKey, deviceId: this.claimedId, packageId, signal, cutAfterBytes },
        sizeBytes: assigned.size_bytes,
        onProgress: async (bytes) => {
          if (bytes - reported < progressBytes || bytes === assigned.size_bytes) return;
          reported = bytes;
          await this.report(
            { rollout_id: rolloutId, progress_percent: Math.floor((bytes * 100) / assigned.size_bytes) },
            signal,
          );
        },
      });
      record.interruptions = interruptions;
      const refusal = refuseImage(image, assigned, this.signingKey);
      const result = refusal
        ? { status: 'failure' as const, firmwareVersion: this.firmwareVersion, error: refusal }
        : applyUpdate(this.behaviour, version);
      if (!result) return record;
      this.firmwareVersion = result.firmwareVersion;
      record.result = result.status;
      const { status, firmwareVersion, error } = result;
      await this.report({ rollout_id: rolloutId, status, firmware_version: firmwareVersion, error }, signal);
    } catch (error) {
      if (!(error instanceof DownloadRefused)) throw error;
      // Another package was assigned during the download; its command will follow.
      record.result = 'abandoned';
    }
    return record;
  }

  private async report(report: Record<string, unknown>, signal: AbortSignal): Promise<void> {
    const body = { device_id: this.claimedId, ...report };
    await this.insist('POST', `/api/v1/devices/${this.claimedId}/ota/report`, body, signal);
  }

  /** Retries a request until the platform responds. Rejections are final. */
  private async insist<Body>(method: string, path: string, body: unknown, signal: AbortSignal): Promise<Body> {
    for (let failures = 1; ; failures++) {
      let response: RestResponse<Body> | undefined;
      try {
        response = await this.rest.send<Body>(method, path, { ...(body === undefined ? {} : { body }), signal });
      } catch {
        signal.throwIfAborted();
      }
      if (response && response.status < 300) return response.body;
      if (response && response.status < 500 && response.status !== 429)
        throw new RestError(`${method} ${path}`, response);
      await this.pause(failures, signal, Number(response?.headers.get('retry-after') ?? 0));
    }
  }

  private async pause(failures: number, signal: AbortSignal, minSeconds = 0): Promise<void> {
    const milliseconds = Math.min(100 * 2 ** failures, maxPauseMilliseconds);
    await sleep(Math.max(milliseconds, minSeconds * 1000), undefined, { signal }).catch(() => undefined);
  }
}
