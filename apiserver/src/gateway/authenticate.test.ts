import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
  ValidateTokenResponseSchema,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { hash } from 'node:crypto';
import type { Database, ListenerState } from '../platform/database.ts';
import { KelletError, unavailable } from '../platform/errors.ts';
import { ServiceRegistry } from '../platform/rpc.ts';
import { Authenticator, credentialOf, identityOf } from './authenticate.ts';

type Answer = MessageInitShape<typeof ValidateTokenResponseSchema>;
const user: Answer = { valid: true, tenantId: 'acme', userId: 'u1', kind: Kind.user, sessionId: 's1', name: 'a@b' };

describe('the credential of a request', () => {
  for (const [authorization, apiKey, want] of [
    [undefined, undefined, undefined],
    ['', undefined, undefined],
    ['Bearer abc', undefined, 'abc'],
    ['bearer  abc ', undefined, 'abc'],
    [undefined, 'key', 'key'],
    ['', 'key', 'key'],
    ['Bearer abc', 'key', 'abc'],
    ['Basic abc', 'key', ''],
    ['Bearer', 'key', ''],
    ['Bearer a b', undefined, ''],
    ['abc', undefined, ''],
  ] as const) {
    it(`${authorization} and ${apiKey}: ${want}`, () => expect(credentialOf(authorization, apiKey)).to.equal(want));
  }
});

describe("what ValidateToken's answer stands for", () => {
  const caller = (answer: Answer) => {
    const identity = identityOf(create(ValidateTokenResponseSchema, answer), 'hash');
    return identity instanceof KelletError ? `${identity.code} ${identity.message}` : identity.caller;
  };

  it('a user, with everything a handler may know', () => {
    expect(
      caller({ ...user, scopes: ['a:read'], ipAllowlist: ['10.0.0.0/8'], expiresAt: timestampFromMs(5500) }),
    ).to.deep.equal({
      kind: 'user',
      tenantId: 'acme',
      userId: 'u1',
      deviceId: '',
      name: 'a@b',
      scopes: new Set(['a:read']),
      credentialHash: 'hash',
      sessionId: 's1',
      ipAllowlist: ['10.0.0.0/8'],
      expiresAt: 5,
    });
  });

  for (const [what, answer, want] of [
    [
      'a service goes by its key',
      { valid: true, kind: Kind.service, keyId: 'k1', userId: 'x' },
      { kind: 'service', userId: 'k1' },
    ],
    ['a device', { valid: true, kind: Kind.device, deviceId: 'd1' }, { kind: 'device', deviceId: 'd1' }],
    ['the platform administrator', { valid: true, kind: Kind.platform_admin }, { kind: 'platform', tenantId: '' }],
  ] as const) {
    it(what, () => expect(caller(answer)).to.include(want));
  }

  for (const [what, answer, want] of [
    ['an expired token', { valid: false, reason: Reason.expired }, '/api/v1/auth/refresh'],
    ['a revoked one', { valid: false, reason: Reason.revoked }, 'UNAUTHENTICATED a valid credential is required'],
    ['no reason', { valid: false }, 'UNAUTHENTICATED'],
    ['no kind', { valid: true, tenantId: 'acme' }, 'UNAUTHENTICATED'],
    ['a kind of a later version', { valid: true, kind: 99 as Kind }, 'UNAUTHENTICATED'],
  ] as const) {
    it(`refuses ${what}`, () => expect(caller(answer)).to.contain(want));
  }

  it('sends the holder of an expired API key to no refresh, which keys do not have', () => {
    const refused = identityOf(create(ValidateTokenResponseSchema, { reason: Reason.expired }), 'hash', true);
    expect((refused as KelletError).message).to.equal('a valid credential is required');
  });
});

describe('remembering credentials', () => {
  let now: number;
  let asked: number;
  let answer: () => Promise<Answer>;
  let authenticator: Authenticator;
  let announce: (payload: string) => void;
  let listening: ListenerState;

  beforeEach(() => {
    now = 1_000_000;
    asked = 0;
    answer = async () => user;
    const registry = new ServiceRegistry();
    registry.register(AuthService, {
      validateToken: () => {
        asked += 1;
        return answer();
      },
    });
    authenticator = new Authenticator(registry, { now: () => now });
    const database = {
      listen: (_channels: string[], receive: (channel: string, payload: string) => void, state: ListenerState) => {
        announce = (payload) => receive('', payload);
        listening = state;
      },
    };
    authenticator.listen(database as unknown as Database);
    listening(false);
  });

  const ask = (credential = 'token') =>
    authenticator.authenticate(credential, '127.0.0.1').then(
      () => 'ok',
      (error: KelletError) => error.code,
    );
  const askTimes = async (times: number, credential?: string) => {
    const before = asked;
    for (let time = 0; time < times; time += 1) await ask(credential);
    return asked - before;
  };

  it('for ten seconds', async () => {
    expect(await askTimes(3)).to.equal(1);
    now += 9_999;
    expect(await askTimes(1)).to.equal(0);
    now += 1;
    expect(await askTimes(1)).to.equal(1);
  });

  it('not beyond their own end', async () => {
    answer = async () => ({ ...user, expiresAt: timestampFromMs(now + 3000) });
    await ask();
    now += 3000;
    expect(await askTimes(1)).to.equal(1);
  });

  it('refused ones for two seconds', async () => {
    answer = async () => ({ valid: false });
    expect(await askTimes(3)).to.equal(1);
    now += 2000;
    expect(await askTimes(1)).to.equal(1);
  });

  it('not when the auth service cannot tell', async () => {
    answer = () => Promise.reject(unavailable('away'));
    expect(await ask()).to.equal('UNAVAILABLE');
    answer = async () => user;
    expect(await ask()).to.equal('ok');
  });

  it('remembers of a Kubernetes token what it may do where, and for less long what it may not', async () => {
    const uses: object[] = [];
    const registry = new ServiceRegistry();
    registry.register(AuthService, {
      validateToken: async ({ namespace, permission }) => {
        uses.push({ namespace, permission });
        const isGranted = permission === 'get otarollouts';
        return { valid: true, kind: Kind.kubernetes, tenantId: isGranted ? 'acme' : '', scopes: [permission] };
      },
    });
    const judge = new Authenticator(registry, { now: () => now });
    const claims = { aud: 'kellet', exp: 2000, 'kubernetes.io': {} };
    const token = `${Buffer.from('{"alg":"RS256"}').toString('base64url')}.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.c2ln`;
    const use = (namespace: string, permission: string) =>
      judge.authenticate(token, '127.0.0.1', { namespace, permission });
    for (let time = 0; time < 2; time += 1) {
      await use('a', 'get otarollouts');
      await use('b', 'get otarollouts');
      await use('a', 'create otarollouts/pause');
    }
    expect(uses).to.have.length(3);
    now += 2_000;
    await use('a', 'get otarollouts');
    await use('a', 'create otarollouts/pause');
    expect(uses).to.deep.equal([
      { namespace: 'a', permission: 'get otarollouts' },
      { namespace: 'b', permission: 'get otarollouts' },
      { namespace: 'a', permission: 'create otarollouts/pause' },
      { namespace: 'a', permission: 'create otarollouts/pause' },
    ]);
    await judge.authenticate('another', '127.0.0.1', { namespace: 'a', permission: 'get otarollouts' });
    expect(uses[4]).to.deep.equal({ namespace: '', permission: '' });
  });

  it('asks nothing about what cannot be a credential', async () => {
    expect(await ask('')).to.equal('UNAUTHENTICATED');
    expect(await ask('x'.repeat(8193))).to.equal('UNAUTHENTICATED');
    expect(asked).to.equal(0);
  });

  for (const [what, payload, forgotten] of [
    ['the credential', hash('sha256', 'token', 'hex'), 1],
    ['its session', 'session:s1', 1],
    ['everything', '*', 1],
    ['another credential', hash('sha256', 'other', 'hex'), 0],
    ['another session', 'session:s2', 0],
    ['a session without name', 'session:', 0],
  ] as const) {
    it(`${forgotten ? 'forgets it' : 'keeps it'} when ${what} is revoked`, async () => {
      await ask();
      announce(payload);
      expect(await askTimes(1)).to.equal(forgotten);
    });
  }

  it('does not remember an answer that a revocation overtook', async () => {
    let release: (value: Answer) => void = () => undefined;
    answer = () => new Promise((resolve) => (release = resolve));
    const first = ask();
    announce('*');
    // Whoever asks after the revocation asks anew instead of sharing the older answer.
    const second = ask();
    expect(asked).to.equal(2);
    release({ valid: false });
    expect(await second).to.equal('UNAUTHENTICATED');
    void first;
  });

  it('remembers nothing while revocations cannot be heard', async () => {
    await ask();
    listening(true);
    expect(await askTimes(3)).to.equal(3);
    listening(false);
    expect(await askTimes(3)).to.equal(1);
  });

  it('tells an open call of its own revocation only', async () => {
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    const ended: string[] = [];
    authenticator.watch('token', caller, '127.0.0.1', () => ended.push('revoked'));
    const stop = authenticator.watch('token', caller, '127.0.0.1', () => ended.push('stopped'));
    stop();
    const settled = () => new Promise((resolve) => setTimeout(resolve, 5));
    announce('*');
    await settled();
    expect(ended).to.deep.equal([]);
    answer = async () => ({ valid: false, reason: Reason.revoked });
    announce('session:s2');
    await settled();
    expect(ended).to.deep.equal([]);
    announce('session:s1');
    announce('session:s1');
    await settled();
    expect(ended).to.deep.equal(['revoked']);
  });
});
