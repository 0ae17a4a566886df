// What a logout token has to say (OpenID Connect Back-Channel Logout 1.0, 2.6), apart from its signature.

/** How old a token may be, and how far the provider's clock may be off. */
export const maximumTokenAge = { seconds: 600, tolerance: 60 };

const logoutEvent = 'http://schemas.openid.net/event/backchannel-logout';

/** Whom a provider has signed out: a person, of one session there or of all, or whoever has a session there. */
export type LoggedOut =
  | { readonly subject: string; readonly session: string | undefined }
  | { readonly subject: undefined; readonly session: string };

/** What a logout token says. */
export interface LogoutClaims {
  readonly who: LoggedOut;
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
  if (subject !== undefined && !isText(subject)) return 'its sub is not a text';
  if (subject !== undefined) return { who: { subject, session: sid }, tokenId };
  return sid === undefined ? 'it has neither sub nor sid' : { who: { subject, session: sid }, tokenId };
}

/**
 * Reports whether a claim is a text that may name a session, a person or a token: PostgreSQL does not store NUL, and stores
 * different halves of surrogate pairs as the same character, which would make two people one.
 */
export const isText = (value: unknown): value is string =>
  typeof value === 'string' && value !== '' && value.length <= 255 && !value.includes('\0') && value.isWellFormed();

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
