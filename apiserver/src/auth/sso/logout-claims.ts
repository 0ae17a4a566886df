// What a logout token has to say (OpenID Connect Back-Channel Logout 1.0, 2.6), apart from its signature.

/** How old a token may be, and how far the provider's clock may be off. */
export const maximumTokenAge = { seconds: 600, tolerance: 60 };

const logoutEvent = 'http://schemas.openid.net/event/backchannel-logout';

/** Whom a provider has signed out. */
export interface LogoutClaims {
  /** The person's id at the provider. */
  readonly subject: string;
  /** The session at the provider; undefined means every session of the person. */
  readonly session: string | undefined;
  /** Id of the token, which is accepted once. */
  readonly tokenId: string;
}

/** Returns the claims of a logout token whose signature, issuer, audience and times were verified, or why it is refused. */
export function readLogoutClaims(claims: Readonly<Record<string, unknown>>): LogoutClaims | string {
  const { sub: subject, sid, jti: tokenId, events } = claims;
  // An ID token with the claim events must not pass for a logout token.
  if (claims['nonce'] !== undefined) return 'it has a nonce';
  if (!isObject(events) || !isObject(events[logoutEvent])) return 'its claim events does not say that it is one';
  if (!isText(tokenId)) return 'it has no jti';
  if (sid !== undefined && !isText(sid)) return 'its sid is not a text';
  if (!isText(subject)) return 'it has no sub: the provider must name the person';
  return { subject, session: sid, tokenId };
}

/** Reports whether a session here began in the session at the provider that has ended. `sid` is that of its ID token. */
export const beganIn = (ended: string | undefined, sid: unknown): boolean =>
  ended === undefined || !isText(sid) || sid === ended;

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '' && value.length <= 255;

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
