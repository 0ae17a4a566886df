// The result of checking a credential.
import type { Caller } from '../../platform/rpc.ts';

/** Reason why a credential is refused (kellet.v1.ValidateTokenResponse.Reason). */
export type RefusalReason = 'unrecognized' | 'expired' | 'revoked' | 'disabled' | 'suspended' | 'deleted';

/** The caller behind a credential, or the reason why the credential is refused. */
export type Authentication =
  | {
      readonly valid: true;
      readonly caller: Caller;
      /** The tenant's; 0 for a platform administrator. */
      readonly rateLimitPerMinute: number;
      /** The service key's or device key's id; empty for an access token. */
      readonly keyId: string;
    }
  | {
      readonly valid: false;
      readonly reason: RefusalReason;
      readonly credential: 'token' | 'key' | 'certificate' | 'kubernetes';
    };
