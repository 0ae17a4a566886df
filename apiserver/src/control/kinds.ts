// The kinds of resource by their numbers in control.proto.
import type { Kind } from '@kellet/crds';
import { Kind as KindNumber } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';

/** The kind of each number. */
export const kindNames: Record<KindNumber, Kind | undefined> = {
  [KindNumber.UNSPECIFIED]: undefined,
  [KindNumber.TENANT]: 'Tenant',
  [KindNumber.DEVICE_PROFILE]: 'DeviceProfile',
  [KindNumber.PROVISIONING_TEMPLATE]: 'ProvisioningTemplate',
  [KindNumber.OTA_PACKAGE]: 'OtaPackage',
  [KindNumber.OTA_ROLLOUT]: 'OtaRollout',
};

/** The number of a kind in control.proto. */
export const kindNumbers = Object.fromEntries(
  Object.entries(kindNames).flatMap(([number, kind]) => (kind ? [[kind, Number(number)]] : [])),
) as Record<Kind, KindNumber>;
