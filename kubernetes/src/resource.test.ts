import { expect } from 'chai';
import { isOlder, keyText, parseKey, pathOf, type Resource } from './resource.ts';

const secret: Resource = { group: '', version: 'v1', plural: 'secrets', kind: 'Secret', namespaced: true };
const tenant: Resource = {
  group: 'kellet.dev',
  version: 'v1alpha1',
  plural: 'tenants',
  kind: 'Tenant',
  namespaced: false,
};

describe('resource', () => {
  it('builds API paths', () => {
    expect(pathOf(secret, 'ns', 'a')).to.equal('/api/v1/namespaces/ns/secrets/a');
    expect(pathOf(secret, '')).to.equal('/api/v1/secrets');
    expect(pathOf(tenant, '', 'acme')).to.equal('/apis/kellet.dev/v1alpha1/tenants/acme');
    expect(pathOf(secret, 'ns', '../x')).to.equal('/api/v1/namespaces/ns/secrets/..%2Fx');
  });

  it('parses the keys that it formats', () => {
    for (const key of [
      { namespace: 'ns', name: 'a' },
      { namespace: '', name: 'acme' },
    ]) {
      expect(parseKey(keyText(key))).to.deep.equal(key);
    }
  });

  for (const [version, than, want] of [
    ['9', '10', true],
    ['10', '9', false],
    ['10', '10', false],
    ['18446744073709551614', '18446744073709551615', true],
    ['x', '10', false],
    [undefined, '10', false],
  ] as const) {
    it(`${version} ${want ? 'is' : 'is not'} older than ${than}`, () => expect(isOlder(version, than)).to.equal(want));
  }
});
