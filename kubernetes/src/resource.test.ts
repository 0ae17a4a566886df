import { expect } from 'chai';
import { customResources, isOlder, keyText, locate, parseKey, resourceFor, secrets } from './resource.ts';

describe('resource', () => {
  it('builds API paths', () => {
    expect(locate(secrets, 'ns', 'a').path).to.equal('/api/v1/namespaces/ns/secrets/a');
    expect(locate(secrets, '').path).to.equal('/api/v1/secrets');
    expect(locate(customResources.Tenant, '', 'acme').path).to.equal('/apis/kellet.dev/v1alpha1/tenants/acme');
    expect(locate(secrets, 'ns', '../x')).to.deep.equal({
      path: '/api/v1/namespaces/ns/secrets/..%2Fx',
      template: '/api/v1/namespaces/{namespace}/secrets/{name}',
    });
    expect(locate(customResources.OtaRollout, 'ns', 'a', 'status').template).to.equal(
      '/apis/kellet.dev/v1alpha1/namespaces/{namespace}/otarollouts/{name}/status',
    );
  });

  it('forms the plurals of Kubernetes', () => {
    const plurals = ['ClusterRole', 'ValidatingAdmissionPolicy'].map((kind) => resourceFor('v1', kind).plural);
    expect(plurals).to.deep.equal(['clusterroles', 'validatingadmissionpolicies']);
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
