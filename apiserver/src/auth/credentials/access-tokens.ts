// Access tokens: JWTs signed with Ed25519, valid for fifteen minutes and bound to a session.
import { createPrivateKey, createPublicKey, hkdfSync, type KeyObject } from 'node:crypto';
import { calculateJwkThumbprint, errors, exportJWK, jwtVerify, SignJWT } from 'jose';
import type { Clock } from '../../platform/clock.ts';
import { newId } from '../../platform/ids.ts';
import type { Role } from './roles.ts';

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
}

/** A token whose signature is valid. */
export interface VerifiedAccessToken {
  readonly tenantId: string;
  readonly userId: string;
  readonly sessionId: string;
  /** Seconds since 1970. */
  readonly expiresAt: number;
}

/** Issues and verifies access tokens with one Ed25519 key. */
export class AccessTokens {
  private readonly privateKey: KeyObject;
  private readonly publicKey: KeyObject;
  private readonly clock: Clock;
  private keyId: Promise<string> | undefined;

  /** Takes a PKCS#8 PEM. Throws when it holds no Ed25519 key. */
  constructor(privateKeyPem: string, clock: Clock) {
    this.privateKey = createPrivateKey(privateKeyPem);
    if (this.privateKey.asymmetricKeyType !== 'ed25519') throw new Error('the JWT key must be an Ed25519 key');
    this.publicKey = createPublicKey(this.privateKey);
    this.clock = clock;
  }

  /**
   * Signs a token that expires after fifteen minutes, or with its session (`notAfter`, milliseconds) when that is
   * sooner.
   */
  async issue(subject: AccessTokenSubject, notAfter: number): Promise<{ token: string; expiresInSeconds: number }> {
    const now = Math.floor(this.clock.now() / 1000);
    const expires = Math.min(now + accessTokenSeconds, Math.floor(notAfter / 1000));
    const token = await new SignJWT({
      tenant: subject.tenantId,
      user: subject.userId,
      session: subject.sessionId,
      ...(subject.role === null ? {} : { role: subject.role }),
      scopes: [...subject.scopes],
    })
      .setProtectedHeader({ alg: 'EdDSA', typ: 'JWT', kid: await this.kid() })
      .setIssuer(issuer)
      .setAudience(issuer)
      .setSubject(subject.userId)
      .setJti(newId())
      .setIssuedAt(now)
      .setExpirationTime(expires)
      .sign(this.privateKey);
    return { token, expiresInSeconds: expires - now };
  }

  /** Verifies signature, issuer and time. Returns `expired` only for tokens that this installation issued. */
  async verify(token: string): Promise<VerifiedAccessToken | 'expired' | 'unrecognized'> {
    try {
      const kid = await this.kid();
      const { payload } = await jwtVerify(
        token,
        (header) => {
          if (header.kid !== kid) throw new errors.JWKSNoMatchingKey();
          return this.publicKey;
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

  /** A secret for another purpose, derived from the signing key; the same in every replica. */
  deriveKey(purpose: string): Buffer {
    const material = this.privateKey.export({ format: 'der', type: 'pkcs8' });
    return Buffer.from(hkdfSync('sha256', material, '', `kellet ${purpose}`, 32));
  }

  private kid(): Promise<string> {
    this.keyId ??= exportJWK(this.publicKey).then((jwk) => calculateJwkThumbprint(jwk));
    return this.keyId;
  }
}
