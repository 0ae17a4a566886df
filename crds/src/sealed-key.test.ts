import { expect } from 'chai';
import { openProvisionKey, sealProvisionKey } from './sealed-key.ts';

describe('sealed provision keys', () => {
  const sealed = sealProvisionKey('shared', 'acme', 'sensors', 'pk_1');

  it('can be opened for their template with the shared secret', () => {
    expect(openProvisionKey('shared', 'acme', 'sensors', sealed)).to.equal('pk_1');
    expect(sealed).to.not.include('pk_1');
    expect(sealProvisionKey('shared', 'acme', 'sensors', 'pk_1')).to.not.equal(sealed);
  });

  const changed = Buffer.from(sealed, 'base64url');
  changed[14]! ^= 1;
  for (const [what, args] of Object.entries<[string, string, string, string]>({
    'another secret': ['other', 'acme', 'sensors', sealed],
    'another template': ['shared', 'acme', 'pumps', sealed],
    'another namespace': ['shared', 'other', 'sensors', sealed],
    'a changed byte': ['shared', 'acme', 'sensors', changed.toString('base64url')],
    'an invalid sealed key': ['shared', 'acme', 'sensors', 'x'],
  })) {
    it(`cannot be opened with ${what}`, () => expect(openProvisionKey(...args)).to.equal(undefined));
  }
});
