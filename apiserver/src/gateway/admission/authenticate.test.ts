import { hash } from 'node:crypto';
import { mock } from 'node:test';
import { create } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
  ValidateTokenResponseSchema,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { revocationChannel, tenantChannel } from '../../platform/database/channels.ts';
import type { ListenerState } from '../../platform/database/connection/listen.ts';
import type { Database } from '../../platform/database/database.ts';
import { KelletError, unavailable } from '../../platform/errors.ts';
import { type Caller, ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { responseFor, type TestToken } from '../testing/test-tokens.ts';
import { Authenticator, credentialOf, identityOf } from './authenticate.ts';

const settled = (milliseconds = 5) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const user: TestToken = { valid: true, tenantId: 'acme', userId: 'u1', kind: Kind.user, sessionId: 's1', name: 'a@b' };

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

describe('the response of ValidateToken', () => {
  const caller = (reply: TestToken) => {
    const identity = identityOf(create(ValidateTokenResponseSchema, responseFor(reply)), 'hash');
    return identity instanceof KelletError ? `${identity.code} ${identity.message}` : identity.caller;
  };

  it('is converted to a user with all details for handlers', () => {
    expect(
      caller({
        ...{ ...user, scopes: ['a:read'], ipAllowlist: ['10.0.0.0/8'], expiresAt: timestampFromMs(5500) },
        limitedGrants: [{ scopes: ['rpc:write'], deviceGroupIds: ['g1'] }],
      }),
    ).to.deep.equal({
      kind: 'user',
      tenantId: 'acme',
      userId: 'u1',
      deviceId: '',
      customerId: '',
      limitedGrants: [{ scopes: ['rpc:write'], deviceGroupIds: ['g1'] }],
      name: 'a@b',
      scopes: new Set(['a:read']),
      credentialHash: 'hash',
      sessionId: 's1',
      ipAllowlist: ['10.0.0.0/8'],
      expiresAt: 5,
    });
  });

  for (const [what, reply, want] of [
    [
      'a service, by its key',
      { valid: true, kind: Kind.service, keyId: 'k1', userId: 'x' },
      { kind: 'service', userId: 'k1' },
    ],
    ['a device', { valid: true, kind: Kind.device, deviceId: 'd1' }, { kind: 'device', deviceId: 'd1' }],
    ['the platform administrator', { valid: true, kind: Kind.platform_admin }, { kind: 'platform', tenantId: '' }],
  ] as const) {
    it(what, () => expect(caller(reply)).to.include(want));
  }

  for (const [what, reply, want] of [
    ['an expired token', { valid: false, reason: Reason.expired }, '/api/v1/auth/refresh'],
    ['a revoked one', { valid: false, reason: Reason.revoked }, 'UNAUTHENTICATED a valid credential is required'],
    ['no reason', { valid: false }, 'UNAUTHENTICATED'],
    ['no kind', { valid: true, tenantId: 'acme' }, 'UNAUTHENTICATED'],
    ['a kind of a later version', { valid: true, kind: 99 as Kind }, 'UNAUTHENTICATED'],
  ] as const) {
    it(`rejects ${what}`, () => expect(caller(reply)).to.contain(want));
  }

  it('does not offer a refresh for an expired API key', () => {
    const refused = identityOf(
      create(ValidateTokenResponseSchema, responseFor({ reason: Reason.expired })),
      'hash',
      true,
    );
    expect((refused as KelletError).message).to.equal('a valid credential is required');
  });
});

describe('caching credentials', () => {
  let now: number;
  let asked: number;
  let reply: () => Promise<TestToken>;
  let authenticator: Authenticator;
  let announce: (payload: string, channel?: string) => void;
  let listening: ListenerState;

  beforeEach(() => {
    now = 1_000_000;
    asked = 0;
    reply = async () => user;
    const registry = new ServiceRegistry();
    registry.register(AuthService, {
      validateToken: async () => {
        asked += 1;
        return responseFor(await reply());
      },
    });
    authenticator = new Authenticator(registry, { now: () => now });
    const database = {
      listen: (_channels: string[], receive: (channel: string, payload: string) => void, state: ListenerState) => {
        announce = (payload, channel = revocationChannel) => receive(channel, payload);
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

  it('lasts ten seconds', async () => {
    expect(await askTimes(3)).to.equal(1);
    now += 9_999;
    expect(await askTimes(1)).to.equal(0);
    now += 1;
    expect(await askTimes(1)).to.equal(1);
  });

  it('ends when the credential expires', async () => {
    reply = async () => ({ ...user, expiresAt: timestampFromMs(now + 3000) });
    await ask();
    now += 3000;
    expect(await askTimes(1)).to.equal(1);
  });

  it('lasts two seconds for rejected ones', async () => {
    reply = async () => ({ valid: false });
    expect(await askTimes(3)).to.equal(1);
    now += 2000;
    expect(await askTimes(1)).to.equal(1);
  });

  it('limits guesses per address, but still validates credentials that were valid before', async () => {
    const from = (address: string, credential: string) =>
      authenticator.authenticate(credential, address).then(
        () => 'ok',
        (error: KelletError) => `${error.code} ${error.retryAfterSeconds ?? ''}`,
      );
    expect(await from('2001:db8::1', 'good')).to.equal('ok');
    reply = async () => ({ valid: false });
    const outcomes: string[] = [];
    asked = 0;
    for (let guess = 0; guess < 1000; guess += 1)
      outcomes.push(await from(`2001:db8::${guess.toString(16)}`, `guess ${guess}`));
    expect(asked).to.equal(200);
    expect(outcomes[199]).to.equal('UNAUTHENTICATED ');
    expect(outcomes.slice(200)).to.satisfy((rest: string[]) => rest.every((one) => one === 'RESOURCE_EXHAUSTED 1'));
    reply = async () => user;
    // From the same address: a credential that was valid before but is no longer cached.
    now += 11_000;
    for (let guess = 0; guess < 1000; guess += 1) {
      reply = async () => ({ valid: false });
      await from('2001:db8::1', `another ${guess}`);
    }
    reply = async () => user;
    expect(await from('2001:db8::1', 'good')).to.equal('ok');
    expect(await from('2001:db8::1', 'new')).to.equal('RESOURCE_EXHAUSTED 1');
    expect(await from('2001:db8:0:1::1', 'new')).to.equal('ok');
    now += 100;
    expect(await from('2001:db8::1', 'newer')).to.equal('ok');
  });

  it('does not charge an address for a credential that was valid and is now revoked', async () => {
    expect(await ask('token')).to.equal('ok');
    reply = async () => ({ valid: false });
    for (let time = 0; time < 300; time += 1) {
      now += 10_000;
      expect(await ask('token')).to.equal('UNAUTHENTICATED');
    }
  });

  it('does not happen when the auth service is unavailable', async () => {
    reply = () => Promise.reject(unavailable('away'));
    expect(await ask()).to.equal('UNAVAILABLE');
    reply = async () => user;
    expect(await ask()).to.equal('ok');
  });

  it('caches permissions of a Kubernetes token per namespace, and missing ones for a shorter time', async () => {
    const uses: object[] = [];
    const registry = new ServiceRegistry();
    registry.register(AuthService, {
      validateToken: async ({ namespace, permission }) => {
        uses.push({ namespace, permission });
        const isGranted = permission === 'get otarollouts';
        const tenantId = isGranted ? 'acme' : '';
        return responseFor({ valid: true, kind: Kind.kubernetes, tenantId, scopes: [permission] });
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

  it('rejects what cannot be a credential without a call', async () => {
    expect(await ask('')).to.equal('UNAUTHENTICATED');
    expect(await ask('x'.repeat(8193))).to.equal('UNAUTHENTICATED');
    expect(asked).to.equal(0);
  });

  for (const [what, payload, forgotten, channel] of [
    ['its tenant has changed', 'acme', 1, tenantChannel],
    ['another tenant has changed', 'other', 0, tenantChannel],
    ['the credential is revoked', hash('sha256', 'token', 'hex'), 1],
    ['its session is revoked', 'session:s1', 1],
    ['everything is revoked', '*', 1],
    ['another credential is revoked', hash('sha256', 'other', 'hex'), 0],
    ['another session is revoked', 'session:s2', 0],
    ['a session without a name is revoked', 'session:', 0],
  ] as const) {
    it(`${forgotten ? 'evicts' : 'keeps'} it when ${what}`, async () => {
      await ask();
      announce(payload, channel);
      expect(await askTimes(1)).to.equal(forgotten);
    });
  }

  it('discards a response that was overtaken by a revocation', async () => {
    let release: (value: TestToken) => void = () => undefined;
    reply = () => new Promise((resolve) => (release = resolve));
    const first = ask();
    announce('*');
    // Requests after the revocation must not share the older call.
    const second = ask();
    expect(asked).to.equal(2);
    release({ valid: false });
    expect(await second).to.equal('UNAUTHENTICATED');
    void first;
  });

  it('stops while revocations cannot be received', async () => {
    await ask();
    listening(true);
    expect(await askTimes(3)).to.equal(3);
    listening(false);
    expect(await askTimes(3)).to.equal(1);
  });

  it('reports to an open call only its own revocation', async () => {
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    const ended: string[] = [];
    const call = { credential: 'token', caller, address: '127.0.0.1' };
    authenticator.watch({ ...call, end: (reason) => ended.push(reason.code) });
    const stop = authenticator.watch({ ...call, end: () => ended.push('stopped') });
    stop();
    announce('*');
    await settled();
    expect(ended).to.deep.equal([]);
    reply = async () => ({ valid: false, reason: Reason.revoked });
    announce('session:s2');
    await settled();
    expect(ended).to.deep.equal([]);
    announce('session:s1');
    announce('session:s1');
    await settled();
    expect(ended).to.deep.equal(['UNAUTHENTICATED']);
  });

  it('ends only the open call whose caller has lost permission', async () => {
    reply = async () => ({ ...user, scopes: ['rpc:read'] });
    const { caller } = await authenticator.authenticate('token', '192.0.2.7');
    const ended: string[] = [];
    const open = (name: string, address: string, refusalOf?: (now: Caller) => string | undefined) =>
      authenticator.watch({
        credential: 'token',
        caller,
        address,
        refusalOf,
        end: ({ code }) => ended.push(`${name} ${code}`),
      });
    open('elsewhere', '198.51.100.1');
    open('scoped', '192.0.2.7', (now) => (now.scopes.has('rpc:read') ? undefined : 'no scope'));
    open('plain', '192.0.2.7');
    reply = async () => ({ ...user, scopes: ['rpc:read'], ipAllowlist: ['192.0.2.0/24'] });
    announce('acme', tenantChannel);
    await settled();
    expect(ended).to.deep.equal(['elsewhere PERMISSION_DENIED']);
    reply = async () => ({ ...user, scopes: [], ipAllowlist: ['192.0.2.0/24'] });
    announce('user:u2');
    await settled();
    expect(ended).to.have.length(1);
    announce('user:u1');
    await settled();
    expect(ended.slice(1)).to.deep.equal(['scoped PERMISSION_DENIED']);
  });

  it('ends an open call whose credential was revoked before the watch started', async () => {
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    reply = async () => ({ valid: false, reason: Reason.revoked });
    announce('session:s1');
    const ended: string[] = [];
    authenticator.watch({ credential: 'token', caller, address: '127.0.0.1', end: ({ code }) => ended.push(code) });
    await settled();
    expect(ended).to.deep.equal(['UNAUTHENTICATED']);
  });

  it('rechecks an open call when the auth service was unavailable', async function () {
    this.timeout(5000);
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    const ended: string[] = [];
    authenticator.watch({ credential: 'token', caller, address: '127.0.0.1', end: ({ code }) => ended.push(code) });
    reply = () => Promise.reject(unavailable('away'));
    announce('*');
    await settled();
    expect(ended).to.deep.equal([]);
    reply = async () => ({ valid: false, reason: Reason.revoked });
    for (let wait = 0; ended.length === 0 && wait < 100; wait += 1) await settled(30);
    expect(ended).to.deep.equal(['UNAUTHENTICATED']);
  });

  it('ends an open call after half a minute in which the auth service was unavailable, but not that of a device', async () => {
    const device: TestToken = { valid: true, tenantId: 'acme', kind: Kind.device, deviceId: 'd1' };
    const ended: string[] = [];
    for (const [credential, who] of [
      ['token', user],
      ['key', device],
    ] as const) {
      reply = async () => who;
      const { caller } = await authenticator.authenticate(credential, '127.0.0.1');
      const end = ({ code }: KelletError): void => void ended.push(`${caller.kind} ${code}`);
      authenticator.watch({ credential, caller, address: '127.0.0.1', end });
    }
    await settled();
    mock.timers.enable({ apis: ['setTimeout'] });
    try {
      const pass = async (seconds: number): Promise<void> => {
        for (let second = 0; second < seconds; second += 1) {
          now += 1000;
          mock.timers.tick(1000);
          for (let turn = 0; turn < 5; turn += 1) await new Promise(setImmediate);
        }
      };
      reply = () => Promise.reject(unavailable('away'));
      listening(true);
      await pass(20);
      reply = async () => user;
      await pass(2);
      reply = () => Promise.reject(unavailable('away'));
      listening(true);
      await pass(29);
      expect(ended).to.deep.equal([]);
      await pass(3);
      expect(ended).to.deep.equal(['user UNAVAILABLE']);
    } finally {
      mock.timers.reset();
    }
  });

  it("ends an open call at the credential's updated expiry", async function () {
    this.timeout(5000);
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    const ended: string[] = [];
    authenticator.watch({ credential: 'token', caller, address: '127.0.0.1', end: ({ code }) => ended.push(code) });
    reply = async () => ({ ...user, expiresAt: timestampFromMs(now + 1000) });
    announce(hash('sha256', 'token', 'hex'));
    await settled();
    now += 5000;
    reply = async () => ({ valid: false, reason: Reason.expired });
    for (let wait = 0; ended.length === 0 && wait < 150; wait += 1) await settled(30);
    expect(ended).to.deep.equal(['UNAUTHENTICATED']);
  });

  it('looks again at an open call of a Kubernetes identity, whose rights nothing announces', async () => {
    const permission = 'list devices';
    const granted: TestToken = { valid: true, kind: Kind.kubernetes, tenantId: 'acme', scopes: [permission] };
    reply = async () => granted;
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    const ended: string[] = [];
    mock.timers.enable({ apis: ['setTimeout'] });
    try {
      authenticator.watch({
        ...{ credential: 'token', caller, address: '127.0.0.1', use: { namespace: 'a', permission } },
        refusalOf: ({ scopes }) => (scopes.has(permission) ? undefined : 'no permission'),
        end: ({ code }) => ended.push(code),
      });
      const pass = async (milliseconds: number): Promise<void> => {
        now += milliseconds;
        mock.timers.tick(milliseconds);
        for (let turn = 0; turn < 5; turn += 1) await new Promise(setImmediate);
      };
      for (let time = 0; time < 3; time += 1) await pass(10_000);
      expect(ended).to.deep.equal([]);
      reply = async () => ({ ...granted, tenantId: '', scopes: [] });
      await pass(9_000);
      expect(ended).to.deep.equal([]);
      await pass(1_000);
      expect(ended).to.deep.equal(['PERMISSION_DENIED']);
    } finally {
      mock.timers.reset();
    }
  });

  it('ends the other open calls when some cannot be ended', async () => {
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    reply = async () => ({ valid: false, reason: Reason.revoked });
    const warnings: string[] = [];
    const warn = (warning: Error): void => void warnings.push(warning.message);
    process.on('warning', warn);
    let ended = 0;
    // More than are checked at once.
    for (let index = 0; index < 17; index += 1) {
      const end = (): void => {
        throw new Error(`call ${index} cannot be ended`);
      };
      authenticator.watch({ credential: `token ${index}`, caller, address: '127.0.0.1', end });
    }
    authenticator.watch({ credential: 'last', caller, address: '127.0.0.1', end: () => (ended += 1) });
    announce('*');
    for (let wait = 0; (ended === 0 || warnings.length < 17) && wait < 200; wait += 1) await settled(10);
    process.off('warning', warn);
    expect([ended, warnings.length]).to.deep.equal([1, 17]);
  });

  it('rechecks thousands of open calls a few at a time', async () => {
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    let ended = 0;
    let most = 0;
    let running = 0;
    for (let index = 0; index < 2000; index += 1) {
      const credential = `token ${index}`;
      authenticator.watch({ credential, caller, address: '127.0.0.1', end: () => (ended += 1) });
    }
    reply = async () => {
      most = Math.max(most, (running += 1));
      await new Promise(setImmediate);
      running -= 1;
      return { valid: false };
    };
    listening(true);
    for (let wait = 0; ended < 2000 && wait < 200; wait += 1) await settled(10);
    expect([ended, most]).to.deep.equal([2000, 16]);
  });

  it('rechecks a call of another tenant next, although thousands of one tenant are due', async () => {
    const { caller } = await authenticator.authenticate('token', '127.0.0.1');
    const other = { ...caller, tenantId: 'other', credentialHash: hash('sha256', 'revoked', 'hex') };
    for (let index = 0; index < 2000; index += 1) {
      const credential = `token ${index}`;
      authenticator.watch({ credential, caller, address: '127.0.0.1', end: () => undefined });
    }
    let endedAfter = 0;
    const end = (): void => void (endedAfter = asked);
    authenticator.watch({ credential: 'revoked', caller: other, address: '127.0.0.1', end });
    while (asked < 2002) await settled();
    asked = 0;
    reply = async () => {
      await new Promise(setImmediate);
      return { valid: false, reason: Reason.revoked };
    };
    announce('acme', tenantChannel);
    announce(other.credentialHash);
    while (endedAfter === 0) await settled();
    expect(endedAfter).to.be.below(50);
  });

  it('ends all open calls of a tenant that is suspended or deleted after a few looks, and no others', async () => {
    for (const reason of [Reason.suspended, Reason.deleted]) {
      reply = async () => user;
      const { caller } = await authenticator.authenticate('token', '127.0.0.1');
      const other = { ...caller, tenantId: 'other', credentialHash: 'other', sessionId: 's2' };
      const ended = new Map<string, number>();
      const stops = [...Array(2000).keys()].map((index) => {
        const credential = `token ${index}`;
        const end = ({ code, message }: KelletError): void => {
          ended.set(`${code} ${message}`, (ended.get(`${code} ${message}`) ?? 0) + 1);
          if (index === 7) throw new Error('this call cannot be ended');
        };
        const isOther = index % 2 === 0;
        return authenticator.watch({ credential, caller: isOther ? other : caller, address: '127.0.0.1', end });
      });
      // Until the first looks are over.
      for (let before = -1; before !== asked; await settled(50)) before = asked;
      asked = 0;
      reply = async () => ({ valid: false, reason });
      announce('acme', tenantChannel);
      const calls = () => [...ended.values()].reduce((sum, count) => sum + count, 0);
      await eventually(() => calls() >= 1000);
      await settled(100);
      // A look at the tenant while it was suspended may still be remembered.
      expect(calls()).to.equal(1000);
      for (const key of ended.keys()) expect(key).to.match(/^PERMISSION_DENIED tenant (suspended|deleted)$/);
      expect(asked).to.be.at.most(32);
      for (const stop of stops) stop();
    }
  });
});
