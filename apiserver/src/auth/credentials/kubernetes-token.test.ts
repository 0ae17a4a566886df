import { expect } from 'chai';
import { namespaceOfServiceAccount, parsePermission, readKubernetesToken } from './kubernetes-token.ts';

const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
const token = (claims: unknown, header: unknown = { alg: 'RS256', kid: 'k' }) => `${part(header)}.${part(claims)}.c2ln`;
const claims = { iss: 'https://kubernetes', aud: ['kellet'], exp: 1000, 'kubernetes.io': { namespace: 'a' } };

describe('readKubernetesToken', () => {
  for (const [what, credential, want] of [
    ["a service account's, for Kellet", token(claims), 1000],
    ['for Kellet among others', token({ ...claims, aud: ['https://kubernetes', 'kellet'] }), 1000],
    ['with one audience as text', token({ ...claims, aud: 'kellet' }), 1000],
    ['for the Kubernetes API', token({ ...claims, aud: ['https://kubernetes'] }), undefined],
    ['without an audience', token({ ...claims, aud: undefined }), undefined],
    ['without an expiry', token({ ...claims, exp: undefined }), undefined],
    ['an access token of Kellet', token({ iss: 'kellet', aud: 'kellet', exp: 1000 }), undefined],
    ['no claims', token(null), undefined],
    ['claims that are a list', token([]), undefined],
    ['claims that are not JSON', `${part({})}.bm8.c2ln`, undefined],
    ['two parts', token(claims).replace(/\.[^.]*$/, ''), undefined],
    ['four parts', `${token(claims)}.x`, undefined],
    ['an API key', 'sk_live_0123456789', undefined],
    ['nothing', '', undefined],
  ] as const) {
    it(`${what}: ${want === undefined ? 'no' : 'yes'}`, () =>
      expect(readKubernetesToken(credential)?.expiresAt).to.equal(want));
  }
});

describe('parsePermission', () => {
  for (const [text, want] of [
    ['list devices', { verb: 'list', resource: 'devices', subresource: '' }],
    ['create otarollouts/pause', { verb: 'create', resource: 'otarollouts', subresource: 'pause' }],
    ['', undefined],
    ['otarollouts', undefined],
    ['create otarollouts/', undefined],
    ['create otarollouts/pause/now', undefined],
    ['* *', undefined],
    ['create  otarollouts', undefined],
  ] as const) {
    it(`${text || '(empty)'}`, () => expect(parsePermission(text)).to.deep.equal(want));
  }
});

describe('namespaceOfServiceAccount', () => {
  for (const [name, want] of [
    ['system:serviceaccount:kellet-acme:kellet-cli', 'kellet-acme'],
    ['system:serviceaccount:a:b.c', 'a'],
    ['system:serviceaccount:a', ''],
    ['system:serviceaccount::b', ''],
    ['alice', ''],
    ['system:serviceaccount:a:b:c', ''],
  ] as const) {
    it(name, () => expect(namespaceOfServiceAccount(name)).to.equal(want));
  }
});
