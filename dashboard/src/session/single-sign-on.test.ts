import { expect } from 'chai';
import { providerOf, ssoReturn, ssoStartUrl } from './single-sign-on.ts';

class MemoryStorage {
  readonly values = new Map<string, string>();
  getItem = (name: string): string | null => this.values.get(name) ?? null;
  setItem = (name: string, value: string): void => void this.values.set(name, value);
  removeItem = (name: string): void => void this.values.delete(name);
}

const fragment = '#access_token=a.b&refresh_token=r&expires_in=900&token_type=Bearer&mfa_token=&mfa_methods=';

describe('single sign-on', () => {
  let storage: MemoryStorage;
  beforeEach(() => (storage = new MemoryStorage()));
  const start = (next = '/', tenant?: string) => {
    const target = { provider: ' Ada@Example.com ', tenant };
    return new URL(
      ssoStartUrl('https://api.test', 'https://dash.test', target, next, { storage, newMark: () => 'm1' }),
    );
  };

  it('begins at the provider of the e-mail domain, and returns to the page that was asked for', () => {
    const url = start('/devices?q=a');
    expect(url.origin + url.pathname).to.equal('https://api.test/api/v1/auth/sso/example.com/start');
    expect(url.searchParams.get('redirect_uri')).to.equal('https://dash.test/sign-in?mark=m1&next=%2Fdevices%3Fq%3Da');
    expect(providerOf('okta')).to.equal('okta');
    expect(url.searchParams.has('tenant_id')).to.equal(false);
  });

  it('begins at the provider of the tenant that was named, of several that have such a provider', () => {
    expect(start('/', ' acme ').searchParams.get('tenant_id')).to.equal('acme');
    expect(start('/', ' ').searchParams.has('tenant_id')).to.equal(false);
  });

  it('takes the refresh token that comes back with the mark, once', () => {
    start();
    expect(ssoReturn(fragment, 'm1', storage)).to.deep.equal({ refresh_token: 'r', mfa_token: '', mfa_methods: [] });
    expect(ssoReturn(fragment, 'm1', storage)).to.equal(undefined);
  });

  it('takes the second step that is still due', () => {
    start();
    const returned = ssoReturn('#mfa_required=true&mfa_token=t&mfa_methods=totp%2Cwebauthn', 'm1', storage);
    expect(returned).to.deep.include({ mfa_token: 't', mfa_methods: ['totp', 'webauthn'], refresh_token: '' });
  });

  it('takes no tokens that this tab did not ask for', () => {
    expect(ssoReturn(fragment, 'm1', storage)).to.equal(undefined);
    expect(ssoReturn(fragment, null, storage)).to.equal(undefined);
    start();
    expect(ssoReturn(fragment, 'm2', storage)).to.equal(undefined);
    expect(ssoReturn('#', 'm1', storage)).to.equal(undefined);
    expect(ssoReturn('#access_token=a', 'm1', storage)).to.equal(undefined);
  });
});
