// Reads what the messages of devices contain besides their rows, and converts them.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { MemoryService } from '@kellet/proto/es/kellet/internal/v1/memory_pb';
import type { DeviceSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Transaction } from '../../platform/database/database.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { visibilityOf, visibleGroups } from '../../platform/visibility.ts';
import type { TenantDefaultFacts } from '../../policies/inheritance.ts';
import type { ShownProfile } from '../../policies/profile-reader.ts';
import { noDefaults, tenantDefaults } from '../../policies/tenant-reader.ts';
import { latestSign } from '../liveness/liveness.ts';
import { toDevice } from './device-view.ts';
import type { DeviceRow } from './devices.ts';
import { groupsOf } from './group-members.ts';
import type { RegistryParts } from './registry-parts.ts';

/** Rows of devices with what their messages contain besides. */
export interface Gathered {
  readonly rows: readonly DeviceRow[];
  readonly groups: ReadonlyMap<string, string[]>;
  readonly tenant: TenantDefaultFacts;
}

/** Reads what the messages of devices contain besides their rows. */
export async function surroundings(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  which?: 'all' | 'without query',
): Promise<Omit<Gathered, 'rows'>> {
  const [groups, tenant = noDefaults] = await Promise.all([
    groupsOf(tx, tenantId, deviceIds, which),
    tenantDefaults(tx, tenantId),
  ]);
  return { groups, tenant };
}

/** Reads everything that the messages of devices contain. */
export async function gather(
  tx: Transaction,
  tenantId: string,
  rows: readonly DeviceRow[],
  which?: 'all' | 'without query',
): Promise<Gathered> {
  const deviceIds = rows.map((row) => row.device_id);
  return { rows, ...(await surroundings(tx, tenantId, deviceIds, which)) };
}

type Message = MessageInitShape<typeof DeviceSchema>;

/** Converts rows to messages. */
export interface DeviceMessages {
  /** Also calls `seeProfiles` with the profiles of the devices. */
  readonly view: (
    context: CallContext,
    gathered: Gathered,
    seeProfiles?: (profiles: ReadonlyMap<string, ShownProfile>) => void,
  ) => Promise<Message[]>;
  readonly viewOne: (context: CallContext, gathered: Gathered) => Promise<Message>;
}

/** Returns the conversions. They read profiles outside the transaction, because that may need another connection. */
export function deviceMessages({ profiles, peers, liveness }: RegistryParts): DeviceMessages {
  const view: DeviceMessages['view'] = async ({ tenantId, caller }, gathered, seeProfiles) => {
    const profileIds = new Set(gathered.rows.flatMap((row) => row.profile_id ?? []));
    const deviceIds = gathered.rows.map((row) => row.device_id);
    const [known, responses = []] = await Promise.all([
      profiles.shown(tenantId, [...profileIds]),
      peers?.ask(tenantId, MemoryService.method.recallSigns, { deviceIds }),
    ]);
    seeProfiles?.(known);
    const elsewhere = Map.groupBy(
      responses.flatMap(({ signs }) => signs),
      (sign) => sign.deviceId,
    );
    const visibility = visibilityOf(caller, 'devices:read');
    return gathered.rows.map((row) =>
      toDevice(row, {
        groupIds: visibleGroups(gathered.groups.get(row.device_id) ?? [], visibility),
        profile: row.profile_id === null ? undefined : known.get(row.profile_id),
        tenant: gathered.tenant,
        overlay: latestSign([liveness.overlay(tenantId, row.device_id), ...(elsewhere.get(row.device_id) ?? [])]),
      }),
    );
  };
  return { view, viewOne: async (context, gathered) => (await view(context, gathered))[0]! };
}
