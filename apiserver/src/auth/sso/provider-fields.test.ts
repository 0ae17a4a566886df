import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { parseOutboundHosts } from '../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import {
  admit,
  domainsField,
  issuerField,
  joinedClaims,
  mappingField,
  nameOfIssuer,
  type PersonClaims,
  providerName,
  roleOf,
} from './provider-fields.ts';

describe('the fields of a provider', () => {
  const guard = new OutboundGuard(parseOutboundHosts('idp.internal'));
  const refused = (check: () => unknown) => {
    expect(check).to.throw(KelletError).with.property('code', 'INVALID_ARGUMENT');
  };

  it('are a name that is a label and no other route', () => {
    expect(providerName('okta-2')).to.equal('okta-2');
    for (const name of ['', 'Okta', 'a.b', '-a', 'a-', 'a'.repeat(64), 'providers', 'callback', 'a/b']) {
      refused(() => providerName(name));
    }
  });

  it('are a name made of the issuer, if none is given', () => {
    for (const [issuer, name] of [
      ['https://Accounts.Example.com', 'accounts-example-com'],
      ['https://idp.example:8443/realms/a', 'idp-example-8443'],
      ['http://[::1]:80', '1'],
      [`https://${'a'.repeat(62)}.example`, 'a'.repeat(62)],
      ['https://idp_1.example', 'idp-1-example'],
    ] as const) {
      expect(providerName(nameOfIssuer(issuer))).to.equal(name);
    }
  });

  it('are an issuer that may be called', () => {
    for (const issuer of ['https://idp.example/realms/a', 'https://idp.example', 'http://idp.internal:8080']) {
      expect(issuerField(issuer, guard)).to.equal(issuer);
    }
    for (const issuer of [
      ...['', 'idp', 'http://idp.example', 'https://user:pass@idp.example', 'https://idp.example?x', 'https://a.b#c'],
      ...['https://127.0.0.1', 'https://169.254.169.254', 'https://[::1]', 'https://10.0.0.1', 'file:///etc/passwd'],
      `https://idp.example/${'x'.repeat(600)}`,
    ]) {
      refused(() => issuerField(issuer, guard));
    }
  });

  it('are at least one domain', () => {
    expect(domainsField(['Example.COM', 'a-b.co.uk'])).to.deep.equal(['example.com', 'a-b.co.uk']);
    for (const domain of ['', 'com', '*.example.com', 'a@example.com', 'exa mple.com', '.com', 'example..com']) {
      refused(() => domainsField([domain]));
    }
    refused(() => domainsField([]));
  });

  it('are roles of a tenant by group', () => {
    expect(mappingField({ admins: 'tenant_admin' })).to.deep.equal({ admins: 'tenant_admin' });
    for (const role of ['platform_admin', 'root', '']) refused(() => mappingField({ a: role }));
    refused(() => mappingField({ '': 'viewer' }));
  });
});

describe('roles by group', () => {
  const mapping = { admins: 'tenant_admin', staff: 'operator', guests: 'viewer' };
  for (const [what, given, groups, role] of [
    ['no mapping', {}, ['admins'], 'viewer'],
    ['one group', mapping, ['staff'], 'operator'],
    ['the highest of several', mapping, ['guests', 'admins', 'staff'], 'tenant_admin'],
    ['a single text', mapping, 'staff', 'operator'],
    ['no groups', mapping, undefined, undefined],
    ['other groups', mapping, ['x', 1, null, {}], undefined],
    ['names of inherited properties', mapping, ['constructor', '__proto__', 'toString'], undefined],
  ] as const) {
    it(`are ${role ?? 'none'} for ${what}`, () => expect(roleOf(given, groups)).to.equal(role));
  }
});

describe('claims of a provider', () => {
  const provider = { allowed_domains: ['acme.test'], role_mapping: {} };
  const good = { sub: 's1', email: 'Ann@ACME.test', email_verified: true, name: 'Ann' };

  it('admit a person with a verified address of an allowed domain', () => {
    expect(admit(good, provider)).to.deep.equal({ subject: 's1', email: 'Ann@ACME.test', name: 'Ann', role: 'viewer' });
    expect(admit({ ...good, name: 7 }, provider)).to.include({ name: '' });
  });

  for (const [what, wrong] of [
    ['an address that is not verified', { email_verified: false }],
    ['an address without email_verified', { email_verified: undefined }],
    ['"true" as text', { email_verified: 'true' }],
    ['another domain', { email: 'ann@evil.test' }],
    ['a subdomain', { email: 'ann@sub.acme.test' }],
    ['a domain that ends alike', { email: 'ann@notacme.test' }],
    ['two at signs', { email: 'ann@evil.test@acme.test' }],
    ['no address', { email: undefined }],
    ['no subject', { sub: '' }],
    ['a huge subject', { sub: 's'.repeat(256) }],
    ['half a surrogate pair in the subject', { sub: 's\ud83d' }],
  ] as const) {
    it(`admit nobody with ${what}`, () => expect(admit({ ...good, ...wrong }, provider)).to.be.a('string'));
  }

  it('admit nobody without a role where groups have roles', () => {
    expect(admit(good, { ...provider, role_mapping: { staff: 'operator' } })).to.contain('groups');
    expect(admit({ ...good, groups: ['staff'] }, { ...provider, role_mapping: { staff: 'operator' } })).to.include({
      role: 'operator',
    });
  });
});

describe('claims of an ID token and of userinfo', () => {
  const verified = { email: 'eve@acme.test', email_verified: true };
  for (const [what, idToken, userinfo, expected] of [
    ['of the ID token, if it says whether the address is verified', verified, { email: 'x@acme.test' }, verified],
    ['of userinfo, if the ID token has no address', { name: 'Eve' }, verified, { name: 'Eve', ...verified }],
    ['of userinfo, if only it says whether its address is verified', { email: 'admin@acme.test' }, verified, verified],
    [
      'of the ID token, if it says that its address is not verified',
      { email: 'admin@acme.test', email_verified: false },
      verified,
      { email: 'admin@acme.test', email_verified: false },
    ],
    [
      'of neither, if nothing says it',
      { email: 'admin@acme.test' },
      { email: 'admin@acme.test' },
      { email: 'admin@acme.test' },
    ],
  ] as [string, PersonClaims, PersonClaims, PersonClaims][]) {
    it(`have the address ${what}`, () => {
      const joined = joinedClaims(idToken, userinfo);
      expect({ email: joined.email, verified: joined.email_verified }).to.deep.equal({
        email: expected.email,
        verified: expected.email_verified,
      });
      expect(joined.name).to.equal(expected.name);
    });
  }
});
