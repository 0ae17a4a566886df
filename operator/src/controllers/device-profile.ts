// DeviceProfile: defaults that devices inherit. It has no references and can be deleted once nothing uses it.
import { holds, withReady } from '../conditions.ts';
import type { KindReconciler } from '../reconciler.ts';

/** Reconciles profiles. */
export const deviceProfileReconciler: KindReconciler<'DeviceProfile'> = {
  kind: 'DeviceProfile',
  aspects: ['Accepted', 'Synced'],
  async observe(_object, _tenantId, { id, device_profile }) {
    return {
      status: { profileId: id, devices: device_profile?.devices ?? 0 },
      findings: withReady([holds('Accepted', 'Accepted'), holds('Synced', 'Synced')], {
        reason: 'Synced',
        message: 'the profile is applied',
      }),
    };
  },
};
