import { expect } from 'chai';
import { Secret } from 'otpauth';
import { acceptedStep, isTotpCode, newTotpSecret, otpauthUri } from './totp.ts';

// The secret of RFC 6238, appendix B; its eight-digit codes end with these six digits.
const secret = Secret.fromUTF8('12345678901234567890').base32;

describe('codes of authenticator apps', () => {
  for (const [seconds, code] of [
    [59, '287082'],
    [1111111109, '081804'],
    [1234567890, '005924'],
    [2000000000, '279037'],
  ] as const) {
    it(`are those of RFC 6238 at ${seconds} s`, () => {
      const step = Math.floor(seconds / 30);
      const at = (offset: number, last = 0) => acceptedStep(secret, code, (seconds + offset) * 1000, last);
      expect(at(0)).to.equal(step);
      expect([at(-30), at(30)], 'a step of drift').to.deep.equal([step, step]);
      expect([at(-60), at(60)], 'two steps of drift').to.deep.equal([undefined, undefined]);
      expect([at(0, step - 1), at(0, step), at(0, step + 1)], 'used before').to.deep.equal([
        step,
        undefined,
        undefined,
      ]);
    });
  }

  it('of another form are none', () => {
    for (const code of ['', '28708', '2870820', '28708２', ' 287082', 'abcdef']) {
      expect(acceptedStep(secret, code, 59_000, 0), code).to.equal(undefined);
      expect(isTotpCode(code), code).to.equal(false);
    }
    expect(isTotpCode('287082')).to.equal(true);
  });

  it('come with a URI that names issuer and account', () => {
    const made = newTotpSecret();
    expect(made).to.match(/^[A-Z2-7]{32}$/);
    const uri = new URL(otpauthUri(made, 'a b@acme.test', 'Kellet acme'));
    expect([uri.protocol, uri.host]).to.deep.equal(['otpauth:', 'totp']);
    expect(decodeURIComponent(uri.pathname)).to.equal('/Kellet acme:a b@acme.test');
    expect(Object.fromEntries(uri.searchParams)).to.deep.equal({
      ...{ issuer: 'Kellet acme', secret: made, algorithm: 'SHA1', digits: '6', period: '30' },
    });
  });
});
