// Single sign-on: starts a sign-in at a provider, and reads the tokens from the fragment of the URL afterwards.

/** What the dashboard takes of the fragment: the refresh token, or the second step that is still due. */
export interface SsoReturn {
  /** The browser has it in its history, with the access token: it is to be exchanged at once. */
  readonly refresh_token: string;
  readonly mfa_token: string;
  readonly mfa_methods: readonly string[];
}

const storageKey = 'kellet.sso';

/** Where somebody wants to sign in. */
export interface SsoTarget {
  /** A provider's name, an e-mail domain, or an e-mail address. */
  readonly provider: string;
  /** Needed if several tenants have such a provider. */
  readonly tenant?: string | undefined;
}

/**
 * Returns the URL that begins a sign-in at a provider, found by its name or by an e-mail domain. The mark that comes back
 * with the tokens is stored in this tab: a link with somebody else's tokens does not sign the reader in.
 */
export function ssoStartUrl(
  api: string,
  origin: string,
  { provider, tenant = '' }: SsoTarget,
  next: string,
  environment: { storage: Pick<Storage, 'setItem'>; newMark: () => string },
): string {
  const mark = environment.newMark();
  environment.storage.setItem(storageKey, mark);
  const back = new URL('/sign-in', origin);
  back.searchParams.set('mark', mark);
  if (next !== '/') back.searchParams.set('next', next);
  const url = new URL(`/api/v1/auth/sso/${encodeURIComponent(providerOf(provider))}/start`, api);
  url.searchParams.set('redirect_uri', back.href);
  if (tenant.trim() !== '') url.searchParams.set('tenant_id', tenant.trim());
  return url.href;
}

/** Returns the provider that was typed: a name or a domain; of an e-mail address, its domain. */
export const providerOf = (typed: string): string => typed.trim().split('@').at(-1)!.toLowerCase();

/** Returns what a return from a provider brought; undefined without any, or if this tab did not start that sign-in. */
export function ssoReturn(
  fragment: string,
  mark: string | null,
  storage: Pick<Storage, 'getItem' | 'removeItem'>,
): SsoReturn | undefined {
  const expected = storage.getItem(storageKey);
  if (fragment.length <= 1 || mark === null || expected === null || mark !== expected) return undefined;
  storage.removeItem(storageKey);
  const fields = new URLSearchParams(fragment.replace(/^#/, ''));
  const text = (name: string): string => fields.get(name) ?? '';
  if (text('mfa_token') === '' && text('refresh_token') === '') return undefined;
  return {
    refresh_token: text('refresh_token'),
    mfa_token: text('mfa_token'),
    mfa_methods: text('mfa_methods').split(',').filter(Boolean),
  };
}
