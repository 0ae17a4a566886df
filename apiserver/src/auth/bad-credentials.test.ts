// What an attacker sends in place of a credential, over REST and gRPC, to a real gateway. docs/security.md lists each case.
import { createHmac, createPrivateKey, createPublicKey, type KeyObject } from 'node:crypto';
import { request as httpRequest } from 'node:http';
import { connect } from 'node:http2';
import { connect as connectSocket } from 'node:net';
import { expect } from 'chai';
import { decodeJwt, decodeProtectedHeader, exportJWK, type JWTPayload, SignJWT } from 'jose';
import { newId } from '../platform/ids.ts';
import { freePort, TestAuthServer } from './testing/test-auth-server.ts';
import { newSigningKey } from './testing/test-platform.ts';

const listSessions = '/kellet.v1.AuthService/ListSessions';
const codes = { UNAUTHENTICATED: '16', OK: '0' };

describe('a request with a bad credential', () => {
  let at: TestAuthServer;
  let grpcPort: number;
  let token: string;
  let claims: JWTPayload;
  let kid: string;
  const pem = newSigningKey();
  const key = createPrivateKey(pem);

  before(async () => {
    grpcPort = await freePort();
    at = await TestAuthServer.start({ KELLET_JWT_PRIVATE_KEY: pem, KELLET_GRPC_PORT: String(grpcPort) });
  });
  after(() => at.stop());
  beforeEach(async () => {
    token = (await at.signedIn('viewer')).token;
    claims = decodeJwt(token);
    kid = decodeProtectedHeader(token).kid!;
  });

  /** The responses of both ports: a status of REST and a code of gRPC. */
  const responses = async (credential: string): Promise<[number, string]> => {
    const { status } = await at.ask('GET', 'auth/sessions', undefined, credential);
    const session = connect(`http://127.0.0.1:${grpcPort}`);
    const stream = session.request({
      ...{ ':method': 'POST', ':path': listSessions, 'content-type': 'application/grpc', te: 'trailers' },
      authorization: `Bearer ${credential}`,
    });
    stream.end(Buffer.alloc(5));
    const code = await new Promise<string>((resolve, reject) => {
      const read = (headers: Record<string, unknown>) => {
        const code = headers['grpc-status'];
        if (typeof code === 'string') resolve(code);
      };
      stream.on('response', read).on('trailers', read).on('error', reject).resume();
    });
    session.close();
    return [status, code];
  };
  const accepted: [number, string] = [200, codes.OK];
  const refused: [number, string] = [401, codes.UNAUTHENTICATED];
  const sign = (changes: JWTPayload, header: object = {}, by: KeyObject = key): Promise<string> =>
    new SignJWT({ ...claims, ...changes }).setProtectedHeader({ alg: 'EdDSA', typ: 'JWT', kid, ...header }).sign(by);
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');

  it('is accepted with a token that is signed in the same way as the bad ones', async () => {
    expect(await responses(token)).to.deep.equal(accepted);
    expect(await responses(await sign({}))).to.deep.equal(accepted);
  });

  it('is refused with a token of alg none, however it is written', async () => {
    for (const alg of ['none', 'None', 'NONE', '']) {
      expect(await responses(`${part({ alg, kid })}.${part(claims)}.`), alg).to.deep.equal(refused);
      expect(await responses(`${part({ alg, kid })}.${part(claims)}.${token.split('.')[2]!}`)).to.deep.equal(refused);
    }
  });

  it('is refused with a token of HS256 whose secret is the public key', async () => {
    const publicKey = createPublicKey(key);
    const jwk = await exportJWK(publicKey);
    const signed = `${part({ alg: 'HS256', typ: 'JWT', kid })}.${part(claims)}`;
    for (const secret of [
      publicKey.export({ type: 'spki', format: 'pem' }),
      publicKey.export({ type: 'spki', format: 'der' }),
      Buffer.from(jwk.x!, 'base64url'),
      JSON.stringify(jwk),
    ]) {
      const mac = createHmac('sha256', secret).update(signed).digest('base64url');
      expect(await responses(`${signed}.${mac}`)).to.deep.equal(refused);
    }
  });

  it('is refused with a token that brings or names its own key', async () => {
    const other = createPrivateKey(newSigningKey());
    const jwk = await exportJWK(createPublicKey(other));
    for (const header of [
      { jwk },
      { jku: `${at.base}/.well-known/jwks.json` },
      { x5c: ['MIIB'] },
      { kid: '../../dev/null' },
      { kid: `${kid}' OR '1'='1` },
    ]) {
      expect(await responses(await sign({}, header, other)), Object.keys(header)[0]).to.deep.equal(refused);
    }
  });

  it('is refused with a token of another issuer', async () => {
    for (const iss of ['https://evil.test', '', 'KELLET', undefined]) {
      expect(await responses(await sign({ iss })), String(iss)).to.deep.equal(refused);
    }
  });

  it('is refused with a token for another audience', async () => {
    for (const aud of ['another', '', undefined, ['another']]) {
      expect(await responses(await sign({ aud })), String(aud)).to.deep.equal(refused);
    }
  });

  it('is refused with an expired token, naming the refresh endpoint', async () => {
    const seconds = Math.floor(at.clock.now() / 1000);
    const expired = await sign({ exp: seconds - 1 });
    expect(await responses(expired)).to.deep.equal(refused);
    expect((await at.ask('GET', 'auth/sessions', undefined, expired)).body['message']).to.contain('auth/refresh');
    for (const exp of [undefined, 0, -1]) expect(await responses(await sign({ exp }))).to.deep.equal(refused);
  });

  it('is refused with a token that is not valid yet', async () => {
    expect(await responses(await sign({ nbf: Math.floor(at.clock.now() / 1000) + 60 }))).to.deep.equal(refused);
  });

  it('is refused with a truncated token, wherever it is cut', async () => {
    const cuts = [1, 10, token.indexOf('.'), token.indexOf('.') + 5, token.lastIndexOf('.'), token.length - 1];
    for (const end of cuts) expect(await responses(token.slice(0, end)), `${end}`).to.deep.equal(refused);
    expect(await responses(token.slice(1))).to.deep.equal(refused);
  });

  it('is refused with a huge token, without reading on', async () => {
    // Correctly signed, but longer than any token that is issued.
    expect(await responses(await sign({ padding: 'x'.repeat(6000) }))).to.deep.equal(refused);
    expect(await responses('x'.repeat(10_000))).to.deep.equal(refused);
    const { status } = await at
      .ask('GET', 'auth/sessions', undefined, 'x'.repeat(1_000_000))
      .catch(() => ({ status: 0 }));
    // The connection may be reset while the client is still sending.
    expect(status).to.be.oneOf([0, 400]);
    expect((await at.ask('POST', 'auth/validate', { token: 'x'.repeat(60_000) }, token)).body['valid']).to.equal(false);
    expect(await responses(token)).to.deep.equal(accepted);
  });

  it('is not believed when its headers name a tenant, user or role, or contain line breaks', async () => {
    const { hostname, port } = new URL(at.base);
    const send = (lines: string[]): Promise<string> =>
      new Promise((resolve, reject) => {
        const socket = connectSocket(Number(port), hostname);
        let text = '';
        socket.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
        socket.on('error', reject).on('close', () => resolve(text));
        socket.write([...lines, 'Host: x', 'Connection: close', '', ''].join('\r\n'));
      });
    const read = 'GET /api/v1/tenant HTTP/1.1';
    const claimed = ['X-Tenant-Id: other', 'X-Kellet-Tenant: other', 'X-User-Id: root', 'X-Kellet-Caller: platform'];
    expect(await send([read, `Authorization: Bearer ${token}`, ...claimed])).to.contain('"tenant_id":"acme"');
    expect(await send([read, ...claimed])).to.match(/^HTTP\/1.1 401 /);
    // Two credentials, and a header that ends another one early, are refused rather than chosen from.
    expect(await send([read, `Authorization: Bearer ${token}\r\n\tx`])).to.match(/^HTTP\/1.1 40[01] /);
    expect(await send([read, `Authorization: Bearer x\rX-API-Key: ${token}`])).to.match(/^HTTP\/1.1 400 /);
    expect(await send([read, `Authorization: Bearer x\0${token}`])).to.match(/^HTTP\/1.1 400 /);
  });

  it('puts nothing of the request into headers of the response', async () => {
    const injected = 'a\r\nSet-Cookie: stolen=1\r\n\r\n<script>';
    for (const route of [
      `auth/sso/${encodeURIComponent(injected)}/start`,
      `auth/sso/callback?state=${encodeURIComponent(injected)}`,
      `auth/lockouts/${encodeURIComponent(injected)}`,
      encodeURIComponent(injected),
    ]) {
      const { headers, status } = await at.ask('GET', route, undefined, token);
      expect(status).to.be.within(400, 499);
      expect(headers.get('set-cookie') ?? '').not.to.contain('stolen');
      expect([...headers.values()].join('\n')).not.to.contain('<script>');
    }
    const id = await new Promise<string>((resolve, reject) => {
      const url = new URL(`${at.base}/api/v1/auth/sessions`);
      httpRequest(url, { headers: { 'x-request-id': 'a"b<script>' } }, (response) => {
        response.resume();
        resolve(String(response.headers['x-request-id']));
      })
        .on('error', reject)
        .end();
    });
    expect(id).not.to.contain('<script>');
  });

  it('cannot change a statement of SQL', async () => {
    const { token: admin, email } = await at.signedIn();
    const count = async (): Promise<number> => {
      const query = 'SELECT count(*)::int4 AS count FROM users';
      return (await at.test.database.system((tx) => tx.query<{ count: number }>(query))).rows[0]!.count;
    };
    const before = await count();
    for (const text of [`' OR '1'='1`, `'; DELETE FROM users; --`, `\\'; DROP TABLE users; --`, `%`, `_`, `$1`]) {
      const login = await at.ask('POST', 'auth/login', { email: `${email}${text}`, password: text, tenant_id: '' });
      expect(login.status, text).to.be.oneOf([400, 401, 429]);
      const tenant = await at.ask('POST', 'auth/login', { email, password: 'x', tenant_id: `acme${text}` });
      expect(tenant.status, text).to.be.oneOf([400, 401, 429]);
      const item = encodeURIComponent(text);
      expect((await at.ask('GET', `auth/users/${item}`, undefined, admin)).status, text).to.equal(404);
      expect((await at.ask('GET', `auth/sso/providers/${item}`, undefined, admin)).status, text).to.equal(404);
      expect((await at.ask('DELETE', `auth/lockouts/${item}`, undefined, admin)).status, text).to.be.oneOf([
        200, 400, 404,
      ]);
      const page = await at.ask('GET', `auth/users?page_token=${item}`, undefined, admin);
      expect(page.status, text).to.equal(400);
    }
    expect(await count()).to.equal(before);
  });

  it('gets no session that somebody else has chosen (session fixation)', async () => {
    const victim = await at.signedIn();
    const sessionOf = (jwt: string): string => String(decodeJwt(jwt)['session']);
    const chosen = sessionOf(token);
    const signIn = async (more: object, credential: string, query = '') =>
      at.ask(
        'POST',
        `auth/login${query}`,
        { email: victim.email, password: 'correct horse battery', ...more },
        credential,
      );
    // A credential, cookie or query of another session does not carry over to the one that a sign-in opens.
    const opened = await signIn({}, token);
    expect(opened.status).to.equal(200);
    const session = sessionOf(opened.body['access_token'] as string);
    expect([chosen, sessionOf(victim.token)]).not.to.include(session);
    expect((await signIn({}, '', `?session_id=${chosen}`)).status).to.equal(400);
    expect((await signIn({ session_id: chosen }, '')).status).to.equal(400);
    expect(opened.headers.get('set-cookie')).to.equal(null);
    expect(await responses(await sign({ session: newId() }))).to.deep.equal(refused);
    expect(await responses(await sign({ session }))).to.deep.equal(refused);
  });
});
