// Binds a sign-in at a provider to the browser that began it: what is needed to complete it is in a cookie, encrypted.
// Nothing is stored here, because anyone may begin sign-ins.
import { createHash, randomBytes } from 'node:crypto';
import type { SealedSecrets } from '../../platform/sealed-secrets.ts';
import type { SignInSecrets } from './openid-provider.ts';

/** How long a person may take to sign in at the provider. */
export const signInSeconds = 600;

/** A sign-in that waits for the browser to return. */
export interface BegunSignIn {
  readonly tenantId: string;
  readonly provider: string;
  /** The provider's settings may change meanwhile. */
  readonly issuer: string;
  readonly nonce: string;
  readonly codeVerifier: string;
  /** The URL to which the provider returns the browser. */
  readonly callback: string;
  /** Where to send the browser afterwards; empty if nowhere. */
  readonly redirectUri: string;
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** New secrets of a sign-in: 256 random bits each. */
export const newSecrets = (): SignInSecrets => ({ state: random(), nonce: random(), codeVerifier: random() });

const random = (): string => randomBytes(32).toString('base64url');

/** Reports whether a text has the form of a state. */
export const isState = (text: string): boolean => /^[\w-]{43}$/.test(text);

/** Returns the hash under which a state is remembered. */
export const stateHash = (state: string): Buffer => createHash('sha256').update(state).digest();

/** Sign-ins that began at the same time in one browser have cookies of their own. */
const plainNameOf = (state: string): string => `kellet_sso_${state.slice(0, 16)}`;

/**
 * Returns the name of the cookie of a sign-in. Over https the name has the prefix with which
 * browsers accept it from https only: a page over http must not plant the cookie of a sign-in that somebody else has begun.
 */
const nameOf = (state: string, callback: string): string =>
  `${isSecure(callback) ? '__Secure-' : ''}${plainNameOf(state)}`;

const isSecure = (callback: string): boolean => new URL(callback).protocol === 'https:';

/** Returns the Set-Cookie that binds a sign-in to the browser. */
export function bindingCookie(secrets: SealedSecrets, state: string, begun: BegunSignIn): string {
  const value = Buffer.from(secrets.seal(state, JSON.stringify(begun)), 'base64').toString('base64url');
  return `${nameOf(state, begun.callback)}=${value}; ${attributes(begun.callback)}; Max-Age=${signInSeconds}`;
}

/** Returns the Set-Cookie that ends the binding. */
export const endedCookie = (state: string, callback: string): string =>
  `${nameOf(state, callback)}=; ${attributes(callback)}; Max-Age=0`;

/** SameSite=Lax: the provider's redirect is a navigation from another site, which Strict would strip of the cookie. */
function attributes(callback: string): string {
  return `Path=${new URL(callback).pathname}; HttpOnly; SameSite=Lax${isSecure(callback) ? '; Secure' : ''}`;
}

/** Returns the sign-in of a state that this browser began, or undefined if it did not, or too long ago. */
export function begunIn(cookies: string, secrets: SealedSecrets, state: string, now: number): BegunSignIn | undefined {
  for (const cookie of cookies.split('; ')) {
    const [name = '', value = ''] = cookie.split('=');
    if (!name.endsWith(plainNameOf(state))) continue;
    try {
      const sealed = Buffer.from(value, 'base64url').toString('base64');
      const begun = JSON.parse(secrets.open(state, sealed)) as BegunSignIn;
      if (name === nameOf(state, begun.callback) && begun.expiresAt > now) return begun;
    } catch {
      // It is of another sign-in, or forged.
    }
  }
  return undefined;
}
