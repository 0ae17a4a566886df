import { expect } from 'chai';
import { newRecoveryCodes, recoveryCodeHash } from './recovery-codes.ts';

describe('recovery codes', () => {
  it('are ten different ones of 16 unambiguous characters', () => {
    const codes = newRecoveryCodes();
    expect(new Set(codes).size).to.equal(10);
    for (const code of codes) expect(code).to.match(/^([a-km-np-z2-9]{4}-){3}[a-km-np-z2-9]{4}$/);
  });

  it('are accepted however they are typed, only for their user', () => {
    const hash = recoveryCodeHash('alice', 'k7wd-9qxm-2hfp-ztn4');
    for (const typed of ['K7WD-9QXM-2HFP-ZTN4', 'k7wd9qxm2hfpztn4', ' k7wd 9qxm 2hfp ztn4\n']) {
      expect(recoveryCodeHash('alice', typed).equals(hash), typed).to.equal(true);
    }
    expect(recoveryCodeHash('bob', 'k7wd-9qxm-2hfp-ztn4').equals(hash)).to.equal(false);
    expect(recoveryCodeHash('alice', 'k7wd-9qxm-2hfp-ztn5').equals(hash)).to.equal(false);
  });
});
