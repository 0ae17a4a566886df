import { expect } from 'chai';
import { SealedSecrets } from '../../platform/sealed-secrets.ts';
import { begunIn, type BegunSignIn, bindingCookie, endedCookie, newSecrets } from './browser-binding.ts';

describe('the cookie that binds a sign-in to the browser', () => {
  const secrets = new SealedSecrets('a control secret of the test, long enough', 'single sign-on');
  const begunAt = (callback: string): BegunSignIn => ({
    ...{ tenantId: 'acme', provider: 'p', issuer: 'https://idp.test', redirectUri: '', expiresAt: 2000 },
    ...{ nonce: 'n', codeVerifier: 'v', callback },
  });

  for (const [scheme, name, attributes] of [
    ['https', /^__Secure-kellet_sso_[\w-]{16}$/, ['HttpOnly', 'SameSite=Lax', 'Secure']],
    ['http', /^kellet_sso_[\w-]{16}$/, ['HttpOnly', 'SameSite=Lax']],
  ] as const) {
    it('is believed under the name of its scheme alone, which browsers guard for https', () => {
      const { state } = newSecrets();
      const begun = begunAt(`${scheme}://kellet.test/api/v1/auth/sso/callback`);
      const [cookie = '', path, ...rest] = bindingCookie(secrets, state, begun).split('; ');
      expect(cookie.split('=')[0]).to.match(name);
      expect(path).to.equal('Path=/api/v1/auth/sso/callback');
      expect(rest.slice(0, -1)).to.deep.equal(attributes);
      expect(begunIn(`kellet_sso_x=1; ${cookie}`, secrets, state, 1000)).to.deep.equal(begun);
      expect(begunIn(cookie, secrets, state, 2000), 'expired').to.equal(undefined);
      expect(endedCookie(state, begun.callback)).to.match(new RegExp(`^${cookie.split('=')[0]}=; `));
      // As another page of the host could set it, over the other scheme.
      const other = cookie.startsWith('__Secure-') ? cookie.replace('__Secure-', '') : `__Secure-${cookie}`;
      expect(begunIn(other, secrets, state, 1000)).to.equal(undefined);
      expect(begunIn(`${other}; ${cookie}`, secrets, state, 1000)).to.deep.equal(begun);
    });
  }
});
