import { expect } from 'chai';
import { requestMetadata } from './metadata.ts';

describe('metadata of a request', () => {
  const cookie = `kellet_sso_${'a'.repeat(16)}=c2VhbGVk`;

  for (const [what, sent, kept] of [
    ['cookies of others', 'session=1; theme=dark', undefined],
    ['a cookie of single sign-on', cookie, cookie],
    ['one that is for https only', `__Secure-${cookie}`, `__Secure-${cookie}`],
    ['it among others', `session=1; ${cookie};theme=dark`, cookie],
    ['one whose name is too short', 'kellet_sso_a=c2VhbGVk', undefined],
    ['one with another value', `kellet_sso_${'a'.repeat(16)}=<script>`, undefined],
  ] as const) {
    it(`${kept === undefined ? 'leaves out' : 'keeps'} ${what}`, () => {
      expect(requestMetadata([['Cookie', sent]]).get('cookie')).to.equal(kept);
    });
  }

  it('leaves out credentials and identities that the client pretends', () => {
    const metadata = requestMetadata([
      ['authorization', 'Bearer x'],
      ['X-API-Key', 'sk_live_x'],
      ['X-Tenant-Id', 'other'],
      ['grpc-metadata-x-user-id', 'root'],
      ['x-other', 'kept'],
    ]);
    expect([...metadata]).to.deep.equal([['x-other', 'kept']]);
  });
});
