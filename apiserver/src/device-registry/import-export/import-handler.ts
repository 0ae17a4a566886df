// The handler of `devices/import`: reads a file as it arrives, creates its devices some at a time, and reports each line.
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type DeviceRegistryService,
  type ImportDevicesRequest,
  ImportDevicesResponse_Status as Status,
  type ImportDevicesResponseSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { LRUCache } from 'lru-cache';
import { mintDeviceKeys } from '../../auth/device-credentials/device-keys.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { alreadyExists, failedPrecondition, invalidArgument, KelletError, notFound } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { pagesOfBytes } from '../../platform/pages-of.ts';
import type { CallContext, Implementation } from '../../platform/rpc.ts';
import { deviceQuota, fleetFacts } from '../devices/devices.ts';
import { groupsOf, holdGroups, joinGroupsOf } from '../devices/group-members.ts';
import type { RegistryParts } from '../devices/registry-parts.ts';
import { readCsv } from './csv-file.ts';
import { type DeviceLine, knownColumns, readDeviceLine } from './device-file.ts';
import { fileMilliseconds, filesOfTenant } from './file-slots.ts';
import { type GroupLimits, inGroups, readAhead } from './groups-of-items.ts';
import { decideLine, type KnownDevice, profileOfLine } from './import-decision.ts';
import { findByHardwareIds, type ImportedDevice, insertDevices, sizesByHardwareIds } from './import-store.ts';
import type { FileLine } from './lines.ts';
import { readNdjson } from './ndjson-file.ts';

const linesPerTransaction = 500;

/** Lines of one transaction: some hundred, unless they are long. */
const groupLimits: GroupLimits<FileLine> = {
  ...{ items: linesPerTransaction, bytes: 256 * 1024, bytesOf: (line) => line.bytes },
  milliseconds: 100,
};

/** Bytes of existing devices that lines are compared with at once: of tags and metadata, which may be large where lines are short. */
const comparedBytes = 256 * 1024;

/** Bytes of devices that a dry run would have created, among which it finds those of later lines: some 100,000. */
const rememberedBytes = 24 * 1024 * 1024;

type Outcome =
  | { readonly status: 'created' | 'unchanged'; readonly deviceId: string; readonly apiKey: string }
  | { readonly status: 'rejected'; readonly error: KelletError };

/** A readable line, before its device is looked up. */
interface Candidate {
  readonly index: number;
  readonly line: DeviceLine;
  /** Empty if none; undefined if the line does not say. */
  readonly profileId: string | undefined;
}

/** The handler. */
export function importHandler(
  parts: RegistryParts,
): Pick<Required<Implementation<typeof DeviceRegistryService>>, 'importDevices'> {
  const slots = filesOfTenant('imports');
  return {
    async *importDevices(requests, context) {
      const { signal } = context;
      const messages = requests[Symbol.asyncIterator]();
      let leave: (() => void) | undefined;
      try {
        const first = await messages.next();
        if (first.done === true) throw invalidArgument('the first message is missing');
        leave = await slots.acquire(context.tenantId, { milliseconds: fileMilliseconds });
        const { dryRun, content } = first.value;
        const read = readerOf(content?.contentType ?? '');
        const run = new ImportRun(parts, context, dryRun);
        const counts = { created: 0, unchanged: 0, rejected: 0 };
        const lines = read(bytesOf(first.value, messages), knownColumns);
        const groups = inGroups(lines, groupLimits);
        for await (const group of readAhead(groups)) {
          if (signal.aborted) throw new KelletError('CANCELLED', 'the client has disconnected');
          for (const [index, outcome] of (await run.take(group)).entries()) {
            counts[outcome.status] += 1;
            yield report(group[index]!.line, outcome);
          }
        }
        yield { summary: counts };
      } finally {
        leave?.();
        await messages.return?.();
      }
    },
  };
}

function readerOf(contentType: string): typeof readCsv {
  const type = contentType.split(';', 1)[0]!.trim().toLowerCase();
  const charset = /;\s*charset\s*=\s*"?([^\s";]+)/i.exec(contentType)?.[1]?.toLowerCase();
  if (charset !== undefined && charset !== 'utf-8' && charset !== 'utf8' && charset !== 'us-ascii') {
    throw invalidArgument('the file must be UTF-8');
  }
  if (type === 'text/csv') return readCsv;
  if (type === 'application/x-ndjson') return readNdjson;
  throw invalidArgument('the content type must be text/csv or application/x-ndjson');
}

async function* bytesOf(
  first: ImportDevicesRequest,
  rest: AsyncIterator<ImportDevicesRequest>,
): AsyncGenerator<Uint8Array> {
  for (let message: ImportDevicesRequest | undefined = first; message;) {
    if (message.content && message.content.data.length > 0) yield message.content.data;
    const next: IteratorResult<ImportDevicesRequest> = await rest.next();
    message = next.done === true ? undefined : next.value;
  }
}

const report = (line: number, outcome: Outcome): MessageInitShape<typeof ImportDevicesResponseSchema> => ({
  line,
  status: Status[outcome.status],
  deviceId: outcome.status === 'rejected' ? '' : outcome.deviceId,
  apiKey: outcome.status === 'rejected' ? '' : outcome.apiKey,
  ...(outcome.status === 'rejected' ? { error: { code: outcome.error.code, message: outcome.error.message } } : {}),
});

/** One import. */
class ImportRun {
  private readonly parts: RegistryParts;
  private readonly tenantId: string;
  private readonly dryRun: boolean;
  /** The ids of profiles by name, read when a line has a name that is not among them. */
  private readonly profiles = new Map<string, string>();
  /** In a dry run, the devices that earlier lines would have created as JSON, by hardware id, and how many in all. */
  private readonly imagined = new LRUCache<string, string>({
    maxSize: rememberedBytes,
    sizeCalculation: (device, hardwareId) => device.length + hardwareId.length + 100,
  });
  private imaginedCount = 0;

  constructor(parts: RegistryParts, { tenantId }: CallContext, dryRun: boolean) {
    this.parts = parts;
    this.tenantId = tenantId;
    this.dryRun = dryRun;
  }

  /** Imports lines in one transaction, or in a dry run decides about them. Returns the outcome of each. */
  async take(group: readonly FileLine[]): Promise<Outcome[]> {
    const outcomes = new Array<Outcome | undefined>(group.length);
    const candidates: Candidate[] = [];
    const lines = group.map((given) =>
      attempt(() => {
        if ('error' in given) throw given.error;
        return readDeviceLine(given.values());
      }),
    );
    const names = new Set(lines.flatMap((line) => (line instanceof KelletError ? [] : (line.profileName ?? []))));
    const unknown = [...names].filter((name) => name !== '' && !this.profiles.has(name));
    if (unknown.length > 0) {
      const { database, profiles } = this.parts;
      const found = await database.read(this.tenantId, (tx) => profiles.idsByName(tx, this.tenantId, unknown));
      for (const [name, profileId] of found) this.profiles.set(name, profileId);
    }
    for (const [index, line] of lines.entries()) {
      const profileId = attempt(() => {
        if (line instanceof KelletError) throw line;
        return profileOfLine(line, this.profiles);
      });
      if (line instanceof KelletError || profileId instanceof KelletError) {
        outcomes[index] = { status: 'rejected', error: profileId as KelletError };
      } else candidates.push({ index, line, profileId });
    }
    if (candidates.length > 0) {
      const decided = this.dryRun
        ? await this.parts.database.tenant(this.tenantId, (tx) => this.settle(tx, candidates))
        : await retriedTransactions(this.parts.database)(this.tenantId, (tx) => this.settle(tx, candidates));
      for (const [index, outcome] of decided) outcomes[index] = outcome;
    }
    return outcomes as Outcome[];
  }

  /** Decides about lines in their order and creates their devices. */
  private async settle(tx: Transaction, candidates: readonly Candidate[]): Promise<Map<number, Outcome>> {
    const { tenantId } = this;
    const missing = await this.missingReferences(tx, candidates);
    const hardwareIds = candidates.map(({ line }) => line.hardwareId);
    const sizes = await sizesByHardwareIds(tx, tenantId, hardwareIds);
    let quota: Awaited<ReturnType<typeof deviceQuota>> | undefined;
    let left = 0;
    const outcomes = new Map<number, Outcome>();
    const created = new Map<string, ImportedDevice & { index: number; groupIds: readonly string[] }>();
    const made = new Map<string, KnownDevice>();
    const bytesOf = ({ line }: Candidate): number => sizes.get(line.hardwareId) ?? 0;
    for (const some of pagesOfBytes(candidates, comparedBytes, bytesOf)) {
      const known = await this.knownDevices(tx, some);
      for (const { index, line, profileId } of some) {
        const { hardwareId } = line;
        const refused = missing(line, profileId);
        const decision = refused
          ? { action: 'reject' as const, error: refused }
          : decideLine(line, profileId, made.get(hardwareId) ?? known.get(hardwareId));
        if (decision.action === 'unchanged') {
          outcomes.set(index, { status: 'unchanged', deviceId: decision.deviceId, apiKey: '' });
          continue;
        }
        if (decision.action === 'reject') {
          outcomes.set(index, { status: 'rejected', error: decision.error });
          continue;
        }
        if (!quota) {
          quota = await deviceQuota(tx, tenantId);
          left = quota.left - this.imaginedCount;
        }
        if (left <= 0) {
          outcomes.set(index, { status: 'rejected', error: quota.refusal() });
          continue;
        }
        left -= 1;
        const device = newDevice(line, profileId, this.dryRun ? '' : newId());
        made.set(hardwareId, device);
        outcomes.set(index, { status: 'created', deviceId: '', apiKey: '' });
        created.set(hardwareId, { ...rowOf(device, hardwareId), index, groupIds: device.groupIds });
        if (this.dryRun) this.imagine(hardwareId, device);
      }
    }
    if (!this.dryRun && created.size > 0) await this.create(tx, created, outcomes);
    return outcomes;
  }

  private async create(
    tx: Transaction,
    created: ReadonlyMap<string, ImportedDevice & { index: number; groupIds: readonly string[] }>,
    outcomes: Map<number, Outcome>,
  ): Promise<void> {
    const { tenantId } = this;
    const rows = await insertDevices(tx, tenantId, [...created.values()]);
    const made = new Set(rows.map((row) => row.device_id));
    const joining = [...created.values()].filter(({ deviceId, groupIds }) => made.has(deviceId) && groupIds.length > 0);
    const [keys] = await Promise.all([
      mintDeviceKeys(
        tx,
        tenantId,
        rows.map((row) => row.device_id),
      ),
      joinGroupsOf(
        tx,
        tenantId,
        joining.flatMap(({ deviceId, groupIds }) => groupIds.map((groupId) => ({ deviceId, groupId }))),
      ),
      this.parts.membership.devicesChanged(
        tx,
        tenantId,
        rows.map((row) => ({ after: fleetFacts(row) })),
      ),
    ]);
    await this.parts.queryGroups.follow(tx, tenantId, [...made]);
    for (const [place, row] of rows.entries()) {
      const { index } = created.get(row.hardware_id)!;
      outcomes.set(index, { status: 'created', deviceId: row.device_id, apiKey: keys[place]! });
    }
    for (const { index, deviceId, hardwareId } of created.values()) {
      if (made.has(deviceId)) continue;
      const error = alreadyExists(`a device with hardware_id ${JSON.stringify(hardwareId)} was created meanwhile`);
      outcomes.set(index, { status: 'rejected', error });
    }
  }

  /**
   * Locks the profiles and groups that lines name. Returns a function that returns the error of a line that names one
   * that does not exist.
   */
  private async missingReferences(
    tx: Transaction,
    candidates: readonly Candidate[],
  ): Promise<(line: DeviceLine, profileId: string | undefined) => KelletError | undefined> {
    const { tenantId, parts } = this;
    const profileIds = [...new Set(candidates.flatMap(({ profileId }) => profileId || []))].sort();
    const groupIds = [...new Set(candidates.flatMap(({ line }) => line.groupIds ?? []))].sort();
    const held = await parts.profiles.hold(tx, tenantId, profileIds);
    const kinds = await holdGroups(tx, tenantId, groupIds);
    return (line, profileId) => {
      if (profileId && !held.has(profileId)) return notFound('profile_id');
      const group = line.groupIds?.find((id) => kinds.get(id) !== false);
      if (group === undefined) return undefined;
      const name = `group_ids: ${JSON.stringify(group)}`;
      return kinds.has(group)
        ? failedPrecondition(`${name} has a query, so no device can be added to it`)
        : notFound(name);
    };
  }

  private async knownDevices(tx: Transaction, candidates: readonly Candidate[]): Promise<Map<string, KnownDevice>> {
    const { tenantId } = this;
    const hardwareIds = candidates.map(({ line }) => line.hardwareId);
    const rows = await findByHardwareIds(tx, tenantId, hardwareIds);
    const withGroups = candidates.flatMap(({ line }) =>
      line.groupIds === undefined ? [] : (rows.get(line.hardwareId)?.device_id ?? []),
    );
    const groups = await groupsOf(tx, tenantId, withGroups, 'without query');
    const known = new Map<string, KnownDevice>();
    for (const hardwareId of hardwareIds) {
      const row = rows.get(hardwareId);
      const device = row
        ? {
            ...{ deviceId: row.device_id, name: row.name, profileId: row.profile_id ?? '', tags: row.tags },
            ...{ metadata: row.metadata, groupIds: groups.get(row.device_id) ?? [] },
          }
        : this.imaginedDevice(hardwareId);
      if (device) known.set(hardwareId, device);
    }
    return known;
  }

  /** Remembers a device that a dry run would have created. */
  private imagine(hardwareId: string, device: KnownDevice): void {
    this.imaginedCount += 1;
    this.imagined.set(hardwareId, JSON.stringify(device));
  }

  private imaginedDevice(hardwareId: string): KnownDevice | undefined {
    const text = this.imagined.get(hardwareId);
    return text === undefined ? undefined : (JSON.parse(text) as KnownDevice);
  }
}

const newDevice = (line: DeviceLine, profileId: string | undefined, deviceId: string): KnownDevice => ({
  deviceId,
  name: line.name ?? line.hardwareId,
  profileId: profileId ?? '',
  tags: line.tags ?? {},
  metadata: line.metadata ?? null,
  groupIds: line.groupIds ?? [],
});

const rowOf = (device: KnownDevice, hardwareId: string): ImportedDevice => ({
  deviceId: device.deviceId,
  name: device.name,
  hardwareId,
  profileId: device.profileId || null,
  tags: JSON.stringify(device.tags),
  metadata: device.metadata === null ? null : JSON.stringify(device.metadata),
});

/** Returns the result, or the KelletError that the work throws. */
function attempt<T>(work: () => T): T | KelletError {
  try {
    return work();
  } catch (error) {
    if (error instanceof KelletError) return error;
    throw error;
  }
}
