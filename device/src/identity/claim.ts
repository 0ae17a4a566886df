// Gives a device its identity: the stored one, or one that it claims.
import { insist, type Insisting } from '../backoff.ts';
import { DeviceError } from '../errors.ts';
import type { Claim, Identity } from '../messages.ts';
import type { Protocol } from '../transports/transport.ts';
import type { KeyStore } from './key-store.ts';

/**
 * Returns the identity in the store. Without one it claims one and stores it, repeating the claim while the platform
 * cannot be reached. Throws if this hardware was claimed before, because its key was shown only then.
 */
export async function identityOf(
  store: KeyStore,
  protocol: Protocol,
  claim: Claim | undefined,
  insisting: Insisting,
): Promise<Identity> {
  const stored = await store.load();
  if (stored) return stored;
  if (!claim) throw new Error('the device has no identity, and no provision key to claim one with');
  const attempt = async (): Promise<Identity> => {
    try {
      return await protocol.claim(claim, insisting.signal);
    } catch (error) {
      // A refused key stays refused, and further attempts would delay the claims of others from this address.
      if (error instanceof DeviceError && error.code === 'PERMISSION_DENIED') {
        throw new DeviceError('UNAUTHENTICATED', `the claim was refused: ${error.message}`, { cause: error });
      }
      throw error;
    }
  };
  const identity = await insist(attempt, insisting);
  if (identity.api_key === '') {
    throw new DeviceError(
      'ALREADY_EXISTS',
      `${claim.hardware_id} was claimed before as ${identity.device_id}, and its key is lost: an administrator can rotate its credentials`,
    );
  }
  await store.save(identity);
  return identity;
}
