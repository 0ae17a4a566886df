// Access tokens: JWTs signed with Ed25519, valid for fifteen minutes and bound to a session.
import { errors, jwtVerify, SignJWT } from 'jose';
import type { Clock } from '../../platform/clock.ts';
import { newId } from '../../platform/ids.ts';
import type { Role } from '../roles/roles.ts';
import type { KeyRing } from './key-ring.ts';

/** Lifetime of an access token in seconds. */
export const accessTokenSeconds = 15 * 60;

const issuer = 'kellet';

/** The holder of a token. Permissions are read from the database, so that a changed role takes effect at once. */
export interface AccessTokenSubject {
  /** Empty for a platform administrator. */
  readonly tenantId: string;
  readonly userId: string;
  readonly sessionId: string;
  /** Null if the user holds only what its groups grant. */
  readonly role: Role | null;
  readonly scopes: Iterable<string>;
  /** Whether the user signed in with one factor (aal1) or two (aal2). */
  readonly aal: string;
  /** When, in milliseconds since 1970. */
  readonly authenticatedAt: number;
}

/** A token whose signature is valid. */
export interface VerifiedAccessToken {
  readonly tenantId: string;
  readonly userId: string;
  readonly sessionId: string;
  /** Seconds since 1970. */
  readonly expiresAt: number;
}

/** Issues and verifies access tokens. */
export class AccessTokens {
  private readonly keys: Pick<KeyRing, 'signing' | 'verifying'>;
  private readonly clock: Clock;

  constructor(keys: Pick<KeyRing, 'signing' | 'verifying'>, clock: Clock) {
    this.keys = keys;
    this.clock = clock;
  }

  /**
   * Signs a token that expires after fifteen minutes, or with its session (`notAfter`, milliseconds) when that is
   * sooner.
   */
  async issue(subject: AccessTokenSubject, notAfter: number): Promise<{ token: string; expiresInSeconds: number }> {
    const { keyId, privateKey } = await this.keys.signing();
    const now = Math.floor(this.clock.now() / 1000);
    const expires = Math.min(now + accessTokenSeconds, Math.floor(notAfter / 1000));
    const token = await new SignJWT({
      tenant: subject.tenantId,
      user: subject.userId,
      session: subject.sessionId,
      ...(subject.role === null ? {} : { role: subject.role }),
      scopes: [...subject.scopes],
      aal: subject.aal,
      auth_time: Math.floor(subject.authenticatedAt / 1000),
    })
      .setProtectedHeader({ alg: 'EdDSA', typ: 'JWT', kid: keyId })
      .setIssuer(issuer)
      .setAudience(issuer)
      .setSubject(subject.userId)
      .setJti(newId())
      .setIssuedAt(now)
      .setExpirationTime(expires)
      .sign(privateKey);
    return { token, expiresInSeconds: expires - now };
  }

  /** Verifies signature, issuer and time. Returns `expired` only for tokens that this installation issued. */
  async verify(token: string): Promise<VerifiedAccessToken | 'expired' | 'unrecognized'> {
    try {
      const { payload } = await jwtVerify(
        token,
        async ({ kid }) => {
          const key = kid === undefined ? undefined : await this.keys.verifying(kid);
          if (!key) throw new errors.JWKSNoMatchingKey();
          return key.publicKey;
        },
        { algorithms: ['EdDSA'], issuer, audience: issuer, currentDate: new Date(this.clock.now()) },
      );
      const { tenant, user, session, exp } = payload;
      if (typeof tenant !== 'string' || typeof user !== 'string' || typeof session !== 'string' || !exp) {
        return 'unrecognized';
      }
      return { tenantId: tenant, userId: user, sessionId: session, expiresAt: exp };
    } catch (error) {
      if (error instanceof errors.JWTExpired) return 'expired';
      if (error instanceof errors.JOSEError) return 'unrecognized';
      throw error;
    }
  }
}
