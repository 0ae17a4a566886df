// Reads what the messages of devices contain besides their rows, and converts them.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { MemoryService } from '@kellet/proto/es/kellet/internal/v1/memory_pb';
import type { DeviceSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Transaction } from '../../platform/database/database.ts';
import type { Page } from '../../platform/requests/paging.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { readSized } from '../../platform/statements/sized-rows.ts';
import { visibilityOf, visibleGroups } from '../../platform/visibility.ts';
import type { TenantDefaultFacts } from '../../policies/inheritance.ts';
import type { ShownProfile } from '../../policies/profile-reader.ts';
import { noDefaults, tenantDefaults } from '../../policies/tenant-reader.ts';
import { latestSign } from '../liveness/liveness.ts';
import type { Selection } from './device-selection.ts';
import { toDevice } from './device-view.ts';
import { type DeviceRow, listDevices } from './devices.ts';
import { groupsOf } from './group-members.ts';
import type { RegistryParts } from './registry-parts.ts';

/** Rows of devices with what their messages contain besides. */
export interface Gathered {
  readonly rows: readonly DeviceRow[];
  readonly groups: ReadonlyMap<string, string[]>;
  readonly tenant: TenantDefaultFacts;
  readonly profiles: ReadonlyMap<string, ShownProfile>;
}

/** Groups of devices that are shown: an import could not add devices to those with a query. */
type ShownGroups = 'all' | 'without query';

type Message = MessageInitShape<typeof DeviceSchema>;

/**
 * Reads devices and converts them to messages. All that is large is read by one transaction: calls that held devices while they wait for
 * another connection would be as many as there are callers.
 */
export interface DeviceMessages {
  /** Reads everything that the messages of devices contain. */
  readonly gather: (
    tx: Transaction,
    tenantId: string,
    rows: readonly DeviceRow[],
    which?: ShownGroups,
  ) => Promise<Gathered>;
  /** Reads a page of a selection, which ends early where devices are large. `isCut`: there are more. */
  readonly gatherPage: (
    tx: Transaction,
    tenantId: string,
    selection: Selection,
    page: Page<string>,
    which?: ShownGroups,
  ) => Promise<Gathered & { readonly isCut: boolean }>;
  readonly view: (context: CallContext, gathered: Gathered) => Promise<Message[]>;
  readonly viewOne: (context: CallContext, gathered: Gathered) => Promise<Message>;
}

/** Returns what reads and converts devices. */
export function deviceMessages({ profiles, peers, liveness }: RegistryParts): DeviceMessages {
  const gather: DeviceMessages['gather'] = async (tx, tenantId, rows, which) => {
    const deviceIds = rows.map((row) => row.device_id);
    const profileIds = new Set(rows.flatMap((row) => row.profile_id ?? []));
    const [groups, tenant = noDefaults, shown] = await Promise.all([
      groupsOf(tx, tenantId, deviceIds, which),
      tenantDefaults(tx, tenantId),
      profiles.shown(tx, tenantId, [...profileIds]),
    ]);
    return { rows, groups, tenant, profiles: shown };
  };
  const gatherPage: DeviceMessages['gatherPage'] = async (tx, tenantId, selection, page, which) => {
    const conditions = await selection.where(tx, 5, page.after);
    const { rows, isCut } = await readSized(
      page,
      (row: DeviceRow) => row.device_id,
      (after, room) => listDevices(tx, tenantId, conditions, after, room),
    );
    return { ...(await gather(tx, tenantId, rows, which)), isCut };
  };
  const view: DeviceMessages['view'] = async ({ tenantId, caller }, gathered) => {
    const deviceIds = gathered.rows.map((row) => row.device_id);
    const responses = (await peers?.ask(tenantId, MemoryService.method.recallSigns, { deviceIds })) ?? [];
    const elsewhere = Map.groupBy(
      responses.flatMap(({ signs }) => signs),
      (sign) => sign.deviceId,
    );
    const visibility = visibilityOf(caller, 'devices:read');
    return gathered.rows.map((row) =>
      toDevice(row, {
        groupIds: visibleGroups(gathered.groups.get(row.device_id) ?? [], visibility),
        profile: row.profile_id === null ? undefined : gathered.profiles.get(row.profile_id),
        tenant: gathered.tenant,
        overlay: latestSign([liveness.overlay(tenantId, row.device_id), ...(elsewhere.get(row.device_id) ?? [])]),
      }),
    );
  };
  return { gather, gatherPage, view, viewOne: async (context, gathered) => (await view(context, gathered))[0]! };
}
