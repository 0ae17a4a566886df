// What providers can make a process keep: their documents are what whoever names them wants.
import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { SignJWT } from 'jose';
import { parseOutboundHosts } from '../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { OpenidProviders, type ProviderClient } from './openid-provider.ts';
import { documentBytes } from './provider-documents.ts';

const configurationPath = '/.well-known/openid-configuration';
/** JSON that takes up to twenty times its text. */
const nested = (bytes: number) => Array.from({ length: bytes / 3 }, () => ({}));
const texts = (bytes: number) => Array.from({ length: bytes / 20 }, (_, index) => `value ${index}`.padEnd(17, '.'));

describe('a provider of OpenID Connect', () => {
  let server: Server;
  let base: string;
  let providers: OpenidProviders;
  /** Paths of requests, and what is sent for them beside the usual fields. */
  let requests: string[];
  /** On whose behalf they are made. */
  let owners: string[];
  let more: object;
  let keySet: object;

  before(async () => {
    server = createServer((request, response) => {
      const url = request.url!;
      requests.push(url);
      const issuer = base + url.replace(configurationPath, '');
      const fields = { issuer, authorization_endpoint: `${issuer}/a`, token_endpoint: `${issuer}/t` };
      const metadata = { ...fields, jwks_uri: `${issuer}/keys`, response_types_supported: ['code'], ...more };
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(url.endsWith(configurationPath) ? metadata : keySet));
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  after(() => {
    server?.closeAllConnections();
    server?.close();
  });
  beforeEach(() => {
    const guard = new OutboundGuard(parseOutboundHosts('127.0.0.1'));
    const request = guard.request.bind(guard);
    guard.request = (url, options, owner) => {
      owners.push(owner);
      return request(url, options, owner);
    };
    providers = new OpenidProviders(guard);
    [requests, owners, more, keySet] = [[], [], {}, { keys: [] }];
  });

  const client = (name: string, tenantId = 'acme'): ProviderClient => ({
    ...{ tenantId, issuer: `${base}/${name}`, clientId: 'client', clientSecret: 'secret' },
  });
  const begin = (name: string, tenantId?: string) =>
    providers.authorizationUrl(client(name, tenantId), `${base}/back`, {
      state: 's',
      nonce: 'n',
      codeVerifier: 'v'.repeat(43),
    });
  const names = Array.from({ length: 100 }, (_, index) => `issuer-${index}`);
  const askedAgain = async (name: string, ask: (name: string) => Promise<unknown> = begin) => {
    const before = requests.length;
    await ask(name);
    return requests.length > before;
  };

  it('is remembered with what is used of its metadata alone', async () => {
    more = { unused: nested(60_000), scopes_supported: ['openid', 'groups'], userinfo_endpoint: nested(300) };
    for (const name of names) await begin(name);
    expect(await askedAgain(names[0]!)).to.equal(false);
    expect((await begin(names[0]!)).searchParams.get('scope')).to.equal('openid email profile groups');
  });

  it('is asked on behalf of the tenant, however many that has, and of each tenant by itself', async () => {
    const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const verify = (name: string, tenantId: string) => {
      const token = `${part({ alg: 'RS256', kid: 'k' })}.${part({ iss: `${base}/${name}` })}.${'A'.repeat(342)}`;
      const age = { seconds: 120, tolerance: 10, now: Date.now() };
      return providers.verifyLogoutToken(client(name, tenantId), token, age);
    };
    for (const name of ['one', 'two']) {
      for (const tenantId of ['acme', 'other']) {
        await begin(name, tenantId);
        await verify(name, tenantId);
        await providers
          .person(client(name, tenantId), new URL(`${base}/back?code=c&state=s`), {
            ...{ state: 's', nonce: 'n', codeVerifier: 'v'.repeat(43) },
          })
          .catch(() => undefined);
      }
    }
    const ofOne = (tenantId: string) => Array<string>(owners.length / 4).fill(tenantId);
    expect(owners).to.deep.equal([...ofOne('acme'), ...ofOne('other'), ...ofOne('acme'), ...ofOne('other')]);
    const paths = ['one', 'two'].flatMap((name) => [`/${name}${configurationPath}`, `/${name}/keys`, `/${name}/t`]);
    expect([...new Set(requests)]).to.deep.equal(paths);
    expect(requests).to.have.length(2 * paths.length);
  });

  it('is forgotten, the least recently used first, when the metadata of all take too much memory', async () => {
    more = { scopes_supported: texts(60_000) };
    for (const name of names) await begin(name);
    expect(await askedAgain(names.at(-1)!)).to.equal(false);
    expect(await askedAgain(names[0]!)).to.equal(true);
  });

  it('is refused if its metadata are too long, and asked no more than every few seconds', async () => {
    more = { unused: 'x'.repeat(documentBytes) };
    for (let attempt = 0; attempt < 2; attempt += 1) {
      const error = await begin('long').catch((one: unknown) => one as Error);
      expect(error).to.be.instanceOf(Error);
    }
    expect(requests).to.have.length(1);
  });

  it('leaves nothing of its responses in an error that is remembered', async () => {
    more = { issuer: 'https://another.test', unused: nested(60_000) };
    const first = await begin('other').catch((one: unknown) => one as Error & { code?: string });
    const second = await begin('other').catch((one: unknown) => one as Error & { code?: string });
    if (!(first instanceof Error && second instanceof Error)) throw new Error('was accepted');
    expect([second.name, second.code, second.message]).to.deep.equal([first.name, first.code, first.message]);
    let text = '';
    for (let one: unknown = second; one !== undefined; one = (one as Error).cause) {
      expect(one).to.be.instanceOf(Error);
      text += JSON.stringify(
        one,
        Object.getOwnPropertyNames(one).filter((name) => name !== 'cause'),
      );
    }
    expect(text.length).to.be.below(8000);
  });

  describe('and its keys', () => {
    const now = Date.now();
    const age = { seconds: 120, tolerance: 10, now };
    let signingKey: KeyObject;
    let jwk: object;
    before(() => {
      const pair = generateKeyPairSync('rsa', { modulusLength: 2048 });
      signingKey = pair.privateKey;
      const { n, e } = pair.publicKey.export({ format: 'jwk' });
      jwk = { kty: 'RSA', kid: 'one', use: 'sig', alg: 'RS256', n, e };
    });
    const verify = async (name: string) => {
      const token = await new SignJWT({ sub: 'somebody' })
        .setProtectedHeader({ alg: 'RS256', kid: 'one' })
        .setIssuer(`${base}/${name}`)
        .setAudience('client')
        .setIssuedAt(Math.floor(now / 1000))
        .sign(signingKey);
      return providers.verifyLogoutToken(client(name), token, age);
    };

    it('are remembered with what is used of them alone', async () => {
      keySet = { keys: [{ ...jwk, x5c: texts(30_000), more: nested(20_000) }, ...nested(6000)], unused: nested(3000) };
      for (const name of names) expect(await verify(name)).to.include({ sub: 'somebody' });
      expect(await askedAgain(names[0]!, verify)).to.equal(false);
    });

    it('are forgotten when those of all take too much memory', async () => {
      const others = Array.from({ length: 2000 }, (_, index) => ({ kty: 'x', kid: `${index}` }));
      keySet = { keys: [jwk, ...others] };
      expect(JSON.stringify(keySet).length).to.be.below(documentBytes);
      for (const name of names) expect(await verify(name)).to.include({ sub: 'somebody' });
      expect(await askedAgain(names.at(-1)!, verify)).to.equal(false);
      expect(await askedAgain(names[0]!, verify)).to.equal(true);
    });

    it('are not used if they take long to verify', async () => {
      // With the exponents exchanged, signing is quick, and verifying takes ten times as long as with usual keys.
      const { n, e, d, ...primes } = signingKey.export({ format: 'jwk' });
      const slow = { n, e: d, d: e, ...primes, dp: e, dq: e };
      const usual = signingKey;
      signingKey = createPrivateKey({ key: slow, format: 'jwk' });
      keySet = { keys: [{ ...jwk, e: d }] };
      expect(await verify('exponent')).to.equal('ERR_JWKS_NO_MATCHING_KEY');
      const large = generateKeyPairSync('rsa', { modulusLength: 4352 });
      signingKey = large.privateKey;
      keySet = { keys: [{ ...jwk, ...large.publicKey.export({ format: 'jwk' }) }] };
      expect(await verify('modulus')).to.equal('ERR_JWKS_NO_MATCHING_KEY');
      signingKey = usual;
    }).timeout(30_000);

    it('are not read beyond their maximum length, or without a set of keys', async () => {
      keySet = { keys: [jwk], unused: 'x'.repeat(documentBytes) };
      expect(await verify('long')).to.equal('away');
      keySet = nested(30);
      expect(await verify('none')).to.equal('ERR_JWKS_INVALID');
    });
  });
});
