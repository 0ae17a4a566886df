import { expect } from 'chai';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { MovableClock, newSigningKey } from '../testing/test-platform.ts';
import { AccessTokens } from './access-tokens.ts';
import { KeyRing, publishedSeconds, signingKey, verifyingKeys, verifySeconds } from './key-ring.ts';
import { runKeysCommand } from './keys-command.ts';

describe('the keys that sign and verify at a time', () => {
  const keys = [{ signsFrom: -Infinity }, { signsFrom: 10_000 }, { signsFrom: 50_000_000 }];
  for (const [now, signs, verify] of [
    [0, 0, [0, 1, 2]],
    [10_000, 1, [0, 1, 2]],
    [10_000 + verifySeconds * 1000 - 1, 1, [0, 1, 2]],
    [10_000 + verifySeconds * 1000, 1, [1, 2]],
    [49_999_999, 1, [1, 2]],
    [50_000_000, 2, [1, 2]],
    [50_000_000 + verifySeconds * 1000, 2, [2]],
  ] as const) {
    it(`at ${now}: ${signs} signs, ${verify.join()} verify`, () => {
      expect(signingKey(keys, now)).to.equal(keys[signs]);
      expect(verifyingKeys(keys, now)).to.deep.equal(verify.map((index) => keys[index]));
    });
  }
});

describe('the key ring', () => {
  let test: TestDatabase;
  let clock: MovableClock;
  let audit: AuditTrail;
  const configuredKey = newSigningKey();
  const logger = createLogger('silent');
  const session = '0190a000-0000-7000-8000-000000000001';
  const user = { tenantId: 'acme', userId: session, sessionId: session, role: 'viewer', scopes: [] } as const;
  const subject = { ...user, aal: 'aal1', authenticatedAt: 0 } as const;

  beforeEach(async () => {
    test = await createTestDatabase();
    clock = new MovableClock();
    clock.advance(Date.now() - clock.now());
    audit = new AuditTrail({ database: test.database, clock, logger, metrics: createMetrics() });
  });
  afterEach(() => test.drop());

  const process = (settings: { rotationDays?: number; configuredKey?: string } = {}) => {
    const ring = new KeyRing({
      ...{ database: test.database, clock, logger, audit, configuredKey, rotationDays: 0 },
      ...settings,
    });
    const tokens = new AccessTokens(ring, clock);
    return {
      ring,
      issue: async () => (await tokens.issue(subject, Number.MAX_SAFE_INTEGER)).token,
      verify: async (token: string) => {
        const verified = await tokens.verify(token);
        return typeof verified === 'string' ? verified : 'valid';
      },
    };
  };
  const kidOf = (token: string) =>
    (JSON.parse(Buffer.from(token.split('.')[0]!, 'base64url').toString()) as { kid: string }).kid;
  const seconds = (count: number) => clock.advance(count * 1000);

  it('begins with the configured key', async () => {
    const { ring, issue, verify } = process();
    const token = await issue();
    const [published, ...others] = await ring.published();
    expect(others).to.deep.equal([]);
    expect(published).to.include({ kty: 'OKP', crv: 'Ed25519', alg: 'EdDSA', use: 'sig', kid: kidOf(token) });
    expect(Object.keys(published!).sort()).to.deep.equal(['alg', 'crv', 'kid', 'kty', 'use', 'x']);
    expect(await verify(token)).to.equal('valid');
  });

  it('lets processes that learn of a rotation at different times accept each other’s tokens', async () => {
    const [first, second] = [process(), process()];
    const before = await first.issue();
    expect(await second.verify(before)).to.equal('valid');
    const keyId = await first.ring.rotate();
    expect(kidOf(await first.issue())).to.equal(kidOf(before));
    expect((await second.ring.published()).map(({ kid }) => kid)).to.deep.equal([kidOf(before), keyId]);
    seconds(publishedSeconds);
    const after = await first.issue();
    expect(kidOf(after)).to.equal(keyId);
    const late = process();
    await late.issue();
    for (const one of [first, second, late]) {
      for (const token of [before, after]) expect(await one.verify(token)).to.equal('valid');
    }
    seconds(verifySeconds);
    expect(await first.verify(before)).to.equal('unrecognized');
    expect((await first.ring.published()).map(({ kid }) => kid)).to.deep.equal([keyId]);
  });

  it('finds a key that it has not loaded yet', async () => {
    const [first, second] = [process(), process()];
    await second.issue();
    await first.ring.rotate();
    seconds(publishedSeconds);
    const token = await first.issue();
    await new Promise((resolve) => setTimeout(resolve, 1100));
    expect(await second.verify(token)).to.equal('valid');
  });

  it('neither signs nor verifies with a key that was replaced while the database was away', async () => {
    const [cutOff, other] = [process(), process()];
    const old = await cutOff.issue();
    expect(await cutOff.verify(old)).to.equal('valid');
    await other.ring.rotate();
    seconds(publishedSeconds);
    const signed = await cutOff.issue();
    expect(kidOf(signed)).to.equal(kidOf(await other.issue()));
    seconds(verifySeconds);
    expect(await cutOff.ring.verifying(kidOf(old))).to.equal(undefined);
    expect(await cutOff.ring.verifying(kidOf(signed))).not.to.equal(undefined);
  });

  it('adds one key for concurrent rotations', async () => {
    const ids = await Promise.all(Array.from({ length: 5 }, () => process().ring.rotate()));
    expect(new Set(ids).size).to.equal(1);
    expect(await process().ring.published()).to.have.length(2);
  });

  it('rotates by schedule, once for all processes', async () => {
    const newest = async () => (await process().ring.published()).at(-1)!.kid;
    const rotated = async (former: string) => {
      const processes = [process({ rotationDays: 1 }), process({ rotationDays: 1 })];
      for (const { ring } of processes) ring.start();
      for (let attempt = 0; attempt < 100 && (await newest()) === former; attempt += 1) {
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      await Promise.all(processes.map(({ ring }) => ring.stop()));
      return newest();
    };
    const configured = await newest();
    const first = await rotated(configured);
    expect(first).not.to.equal(configured);
    seconds(86_400 + publishedSeconds - 10);
    expect(await rotated(first)).to.equal(first);
    seconds(10);
    expect(await rotated(first)).not.to.equal(first);
    const { rows } = await test.database.system((tx) => tx.query('SELECT FROM signing_keys'));
    expect(rows).to.have.length(2);
  });

  it('stores no key in clear, and ignores those that another configured key has sealed', async () => {
    const { ring } = process();
    await ring.rotate();
    const { rows } = await test.database.system((tx) =>
      tx.query<{ sealed_key: Buffer }>('SELECT sealed_key FROM signing_keys'),
    );
    const prefixOfPrivateKeys = Buffer.from('302e020100300506032b657004220420', 'hex');
    expect(rows[0]!.sealed_key.includes(prefixOfPrivateKeys)).to.equal(false);
    expect(await process({ configuredKey: newSigningKey() }).ring.published()).to.have.length(1);
    await test.database.system((tx) => tx.query(`UPDATE signing_keys SET sealed_key = set_byte(sealed_key, 40, 1)`));
    expect(await process().ring.published()).to.have.length(1);
  });

  it('says which key signs', async () => {
    const { ring } = process();
    const states = async () => (await ring.listed()).map(({ state }) => state);
    expect(await states()).to.deep.equal(['signing']);
    await ring.rotate();
    expect(await states()).to.deep.equal(['signing', 'next']);
    seconds(publishedSeconds);
    expect(await states()).to.deep.equal(['retiring', 'signing']);
    seconds(verifySeconds);
    expect(await states()).to.deep.equal(['signing']);
  });

  it('is listed and rotated by a command', async () => {
    const lines: string[] = [];
    const run = (...args: string[]) =>
      runKeysCommand(args, {
        database: test.database,
        logger,
        audit,
        configuredKey,
        write: (line) => lines.push(line),
      });
    expect(await run('rotate')).to.equal(0);
    expect(await run('list')).to.equal(0);
    expect(lines).to.have.length(3);
    const states = () => lines.splice(0).map((line) => (JSON.parse(line) as { state: string }).state);
    const newest = (JSON.parse(lines[2]!) as { kid: string }).kid;
    expect(lines[0]).to.contain(newest);
    const { rows } = await test.database.system((tx) =>
      tx.query('SELECT action, resource_id FROM audit_pending WHERE tenant_id = $1', ['']),
    );
    expect(rows).to.deep.equal([{ action: 'auth.signing_key_added', resource_id: newest }]);
    lines.shift();
    expect(states()).to.deep.equal(['signing', 'next']);
    for (const args of [[], ['list', 'x'], ['drop']]) expect(await run(...args)).to.equal(2);
  });

  it('refuses other keys in the configuration', () => {
    expect(() => process({ configuredKey: 'nonsense' })).to.throw();
  });
});
