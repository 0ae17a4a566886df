// The rollouts that have not completed, by profile. Completed ones stay in the cluster for years, so that looking through all
// rollouts of a namespace whenever one of them is reconciled would cost the square of their number.
import type { OtaRollout } from '@kellet/crds';
import { keyText } from '@kellet/kubernetes';
import type { Change } from './runtime/reflector.ts';

/** Keys of rollouts by the namespace and name of their profile. */
export class UnfinishedRollouts {
  private readonly byProfile = new Map<string, Set<string>>();
  /** The entry in `byProfile` under which a rollout is. */
  private readonly profileOf = new Map<string, string>();

  /** Follows a change of a rollout. */
  follow({ type, object }: Change<OtaRollout>): void {
    const { namespace = '', name } = object.metadata;
    const key = keyText({ namespace, name });
    this.remove(key);
    if (type === 'deleted' || object.status?.phase === 'Completed') return;
    const profile = keyText({ namespace, name: object.spec.targetProfileRef.name });
    const keys = this.byProfile.get(profile) ?? new Set();
    this.byProfile.set(profile, keys.add(key));
    this.profileOf.set(key, profile);
  }

  /** Returns the keys of the rollouts of a profile. */
  ofProfile(namespace: string, name: string): Iterable<string> {
    return this.byProfile.get(keyText({ namespace, name })) ?? [];
  }

  private remove(key: string): void {
    const profile = this.profileOf.get(key);
    if (profile === undefined) return;
    this.profileOf.delete(key);
    const keys = this.byProfile.get(profile)!;
    keys.delete(key);
    if (keys.size === 0) this.byProfile.delete(profile);
  }
}
