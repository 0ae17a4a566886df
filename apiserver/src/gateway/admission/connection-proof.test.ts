import { hash, X509Certificate } from 'node:crypto';
import { expect } from 'chai';
import { certificateOf, newKeys } from '../../auth/testing/test-certificates.ts';
import { certificateOfHeader, connectionProofs } from './connection-proof.ts';

describe('the certificate in a header of a proxy', () => {
  let pem: string;
  let other: string;
  let sha256: string;
  before(async () => {
    pem = await certificateOf(await newKeys(), 'device');
    other = await certificateOf(await newKeys(), 'other');
    sha256 = hash('sha256', new X509Certificate(pem).raw);
  });
  const read = (name: string, text: string): string | undefined => {
    const proof = certificateOfHeader(name, text);
    return proof?.kind === 'certificate' ? proof.sha256.toString('hex') : undefined;
  };
  const victim = 'ab'.repeat(32);

  const cases: [string, string, () => string, () => string | undefined][] = [
    ['of URL-encoded PEM', 'x-cert', () => encodeURIComponent(pem), () => sha256],
    ['of a chain, of which the first counts', 'x-cert', () => encodeURIComponent(pem + other), () => sha256],
    ['of Envoy', 'x-forwarded-client-cert', () => `By=spiffe://a;By=b;Hash=${sha256};Subject="CN=x"`, () => sha256],
    ['of Envoy, the hash alone', 'x-forwarded-client-cert', () => `Hash=${sha256.toUpperCase()}`, () => sha256],
  ];
  const ignored: [string, string, () => string][] = [
    ['that is empty', 'x-cert', () => ''],
    ['with a word', 'x-cert', () => '(null)'],
    ['with broken encoding', 'x-cert', () => '%zz'],
    ['given twice', 'x-cert', () => `${encodeURIComponent(other)}, ${encodeURIComponent(pem)}`],
    ['with text around it', 'x-cert', () => `x${encodeURIComponent(pem)}`],
    ['of Envoy, appended to the client’s', 'x-forwarded-client-cert', () => `Hash=${victim},By=a;Hash=${sha256}`],
    [
      'of Envoy, appended behind an open quote',
      'x-forwarded-client-cert',
      () => `Hash=${victim};Subject=",By=a;Hash=${sha256};Subject="CN=x"`,
    ],
    [
      'of Envoy, with a hash in the subject alone',
      'x-forwarded-client-cert',
      () => `Subject="CN=a\\";Hash=${victim};x=\\""`,
    ],
    ['of Envoy, with a hash that is too short', 'x-forwarded-client-cert', () => `Hash=${victim.slice(2)}`],
  ];
  for (const [what, name, text, expected] of cases) {
    it(`is read from one ${what}`, () => expect(read(name, text())).to.equal(expected()));
  }
  for (const [what, name, text] of ignored) {
    it(`is not read from one ${what}`, () => expect(read(name, text())).to.equal(undefined));
  }

  it('counts from trusted proxies alone, and is not looked for without the setting', () => {
    const header = () => encodeURIComponent(pem);
    const from = (remoteAddress: string, setting = 'X-Cert') =>
      connectionProofs(setting, ['192.0.2.0/24'])({ remoteAddress }, header)?.kind;
    expect(from('192.0.2.7')).to.equal('certificate');
    expect(from('::ffff:192.0.2.7')).to.equal('certificate');
    expect(from('198.51.100.1')).to.equal(undefined);
    expect(from('')).to.equal(undefined);
    expect(from('192.0.2.7', '')).to.equal(undefined);
  });
});
