// What a profile that requires signatures keeps from its devices, whichever way an unsigned package would come.
import { createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { OtaPackage_Status, Rollout_PauseReason } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import pg from 'pg';
import { profileRolloutsLock } from '../../../platform/database/advisory-locks.ts';
import { tenantChannel } from '../../../platform/database/channels.ts';
import { newId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { eventually } from '../../../platform/testing/eventually.ts';
import { recountRollouts } from '../rollouts/stores/rollout-store.ts';
import { SigningKeys } from '../signing-keys.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { testIntake } from '../testing/test-artifacts.ts';
import { setPackageAvailability } from './package-store.ts';
import { Packages } from './packages.ts';

describe('a required signature', () => {
  let fixture: RolloutFixture;
  let guarded: string;
  let signed: string;
  let signedOlder: string;
  let unsigned: string;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    guarded = await fixture.profile('guarded', { requireSignature: true });
    signed = await fixture.package('signed', '3.0.0', { signed: true });
    signedOlder = await fixture.package('signed-older', '2.5.0', { signed: true });
    unsigned = await fixture.package('unsigned', '3.1.0');
  });
  afterEach(() => fixture.close());

  it('keeps a rollout of an unsigned package from being created, and one that would go back to one', async () => {
    await fixture.make(guarded, 2);
    const rollout = (name: string, rollback: string) =>
      refusal(
        fixture.start({
          targetProfileRef: { name: 'guarded' },
          packageRef: { name },
          rollbackPackageRef: { name: rollback },
          canaryPercent: 100,
        }),
      );
    expect(await rollout('unsigned', 'signed-older')).to.equal('SignatureRequired');
    expect(await rollout('signed', 'unsigned')).to.equal('SignatureRequired');
    expect(await fixture.rows('SELECT FROM ota_rollouts')).to.have.length(0);
    expect(await rollout('signed', 'signed-older')).to.equal('nothing');
  });

  it('keeps an unsigned package from becoming the rollback package later', async () => {
    await fixture.make(guarded, 1);
    const id = await fixture.start({
      targetProfileRef: { name: 'guarded' },
      packageRef: { name: 'signed' },
      rollbackPackageRef: { name: 'signed-older' },
    });
    expect(await refusal(fixture.apply(id, { rollbackPackageRef: { name: 'unsigned' } }))).to.equal(
      'SignatureRequired',
    );
    expect(await fixture.row(id)).to.include({ rollback_package_id: signedOlder });
  });

  it('rejects an assignment of an unsigned package, by the profile or the tenant’s defaults', async () => {
    const [device] = (await fixture.make(guarded, 1)) as [string];
    const [plain] = (await fixture.make('', 1)) as [string];
    const assign = (deviceId: string, packageId: string) => refusal(fixture.overrides.set(tenant, deviceId, packageId));
    expect(await assign(device, unsigned)).to.equal('FAILED_PRECONDITION');
    expect(await refusal(fixture.metadata(device))).to.equal('NOT_FOUND');
    expect(await assign(device, signed)).to.equal('nothing');
    expect(await assign(plain, unsigned)).to.equal('nothing');
    await fixture.rows(`UPDATE tenants SET defaults = '{"ota_policy": {"require_signature": true}}'`);
    expect(await assign(plain, unsigned)).to.equal('FAILED_PRECONDITION');
    // What was assigned before is not delivered any more.
    expect(await refusal(fixture.chunk(plain, unsigned))).to.equal('FAILED_PRECONDITION');
    expect(await refusal(fixture.metadata(plain))).to.equal('FAILED_PRECONDITION');
    expect(await assign(plain, signed)).to.equal('nothing');
    expect(await refusal(fixture.chunk(plain, signed))).to.equal('nothing');
  });

  it('applies to an assignment from before the device got the profile', async () => {
    const open = await fixture.profile('open');
    const [device] = (await fixture.make(open, 1)) as [string];
    await fixture.overrides.set(tenant, device, unsigned);
    expect(await refusal(fixture.chunk(device, unsigned))).to.equal('nothing');
    await fixture.move(device, guarded);
    expect(await refusal(fixture.chunk(device, unsigned))).to.equal('FAILED_PRECONDITION');
  });

  it('pauses running rollouts of unsigned packages when it begins, denies what was on its way, and lets none resume', async () => {
    const open = await fixture.profile('open');
    await fixture.make(open, 4);
    const id = await fixture.start({
      targetProfileRef: { name: 'open' },
      packageRef: { name: 'unsigned' },
      canaryPercent: 50,
    });
    const member = (await fixture.members(id))[0]!;
    expect(await refusal(fixture.chunk(member.device_id, unsigned))).to.equal('nothing');
    await fixture.profile('open', { requireSignature: true });
    expect(await fixture.row(id)).to.include({ phase: 'paused' });
    expect(await fixture.rollouts.get(tenant, id)).to.deep.include({
      message: 'paused: the package has no signature by a trusted key',
      pauseReasons: [Rollout_PauseReason.signature_required],
    });
    expect(await fixture.events(id)).to.deep.equal(['started', 'paused']);
    expect(await refusal(fixture.chunk(member.device_id, unsigned))).to.equal('FAILED_PRECONDITION');
    const resume = () => refusal(fixture.rollouts.resume(fixture.context, id, undefined));
    expect(await resume()).to.equal('FAILED_PRECONDITION');
    // The rollback package is unsigned as well.
    expect(await refusal(fixture.rollouts.rollback(fixture.context, id))).to.equal('FAILED_PRECONDITION');
    expect(await fixture.row(id)).to.include({ phase: 'paused', rollback_requested_at: null });
    await fixture.profile('open');
    expect(await fixture.row(id), 'it goes on only when somebody says so').to.include({ phase: 'paused' });
    expect(await resume()).to.equal('nothing');
    expect(await refusal(fixture.chunk(member.device_id, unsigned))).to.equal('nothing');
  });

  describe('when it begins while something waits for a lock', () => {
    /** Has the profile require signatures in a transaction that holds a lock for which `work` waits. */
    const during = async (profileId: string, lock: string, value: string, work: () => Promise<unknown>) => {
      const url = new URL(process.env['KELLET_TEST_DATABASE_URL']!);
      url.pathname = new URL(fixture.test.url).pathname;
      const rival = new pg.Client({ connectionString: url.href });
      await rival.connect();
      await rival.query('BEGIN');
      await rival.query(lock, [value]);
      const outcome = refusal(work());
      await new Promise((resolve) => setTimeout(resolve, 300));
      await rival.query(
        `UPDATE profiles SET document = document || '{"ota_policy": {"require_signature": true}}' WHERE profile_id = $1`,
        [profileId],
      );
      await rival.query('COMMIT');
      await rival.end();
      return outcome;
    };

    it('creates no rollout of an unsigned package', async () => {
      const open = await fixture.profile('open');
      await fixture.make(open, 2);
      const start = () =>
        fixture.start({ targetProfileRef: { name: 'open' }, packageRef: { name: 'unsigned' }, canaryPercent: 50 });
      const lock = 'SELECT pg_advisory_xact_lock(hashtextextended($1, 0))';
      expect(await during(open, lock, profileRolloutsLock(tenant, open), start)).to.equal('SignatureRequired');
    });

    it('resumes none', async () => {
      const open = await fixture.profile('open');
      await fixture.make(open, 2);
      const id = await fixture.start({
        targetProfileRef: { name: 'open' },
        packageRef: { name: 'unsigned' },
        canaryPercent: 50,
      });
      await fixture.rollouts.pause(fixture.context, id);
      const resume = () => fixture.rollouts.resume(fixture.context, id, undefined);
      const lock = 'SELECT FROM ota_rollouts WHERE rollout_id = $1 FOR UPDATE';
      expect(await during(open, lock, id, resume)).to.equal('FAILED_PRECONDITION');
    });
  });

  it('denies a rollback package that is on its way when it begins', async () => {
    const open = await fixture.profile('open');
    const [device] = (await fixture.make(open, 1)) as [string];
    const id = await fixture.start({
      targetProfileRef: { name: 'open' },
      packageRef: { name: 'signed' },
      rollbackPackageRef: { name: 'unsigned' },
      canaryPercent: 100,
    });
    await fixture.report(device, id, '3.0.0');
    await fixture.rollouts.rollback(fixture.context, id);
    expect(await refusal(fixture.chunk(device, unsigned))).to.equal('nothing');
    await fixture.profile('open', { requireSignature: true });
    expect(await refusal(fixture.chunk(device, unsigned))).to.equal('FAILED_PRECONDITION');
  });

  it('schedules no device for a rollout of an unsigned package that was created before', async () => {
    const open = await fixture.profile('open');
    await fixture.make(open, 4);
    const id = await fixture.start({
      targetProfileRef: { name: 'open' },
      packageRef: { name: 'unsigned' },
      canaryPercent: 50,
    });
    // As if the profile had changed between the judgement and the creation.
    await fixture.rows(
      `UPDATE profiles SET document = '{"type": "sensor", "ota_policy": {"require_signature": true}}' WHERE name = 'open'`,
    );
    await fixture.make(open, 4);
    await fixture.schedule(id);
    expect(await fixture.row(id)).to.include({ phase: 'paused', scheduled: 2, eligible: 8 });
  });

  describe('with keys that change', () => {
    let packages: Packages;
    let signingKeys: SigningKeys;
    const later = generateKeyPairSync('ed25519');
    beforeEach(() => {
      const { database } = fixture.test;
      const logger = createLogger('silent');
      packages = new Packages({
        ...{ database, logger, writer: undefined as never, paging: new Paging(Buffer.alloc(32)) },
        ...{ artifacts: testIntake(), compatibilityChanged: recountRollouts },
      });
      signingKeys = new SigningKeys({ database, packages, membership: fixture.membership, logger });
    });
    afterEach(async () => {
      await signingKeys.stop();
      await packages.stop();
    });

    it('accepts a package that was made before its key was trusted', async () => {
      const [device] = (await fixture.make(guarded, 1)) as [string];
      const early = await fixture.package('early', '4.0.0', { signed: later.privateKey });
      const assign = () => refusal(fixture.overrides.set(tenant, device, early));
      const show = async () => (await packages.get(tenant, early)).signatureVerified;
      expect([await assign(), await show()]).to.deep.equal(['FAILED_PRECONDITION', false]);
      await fixture.trust(later.publicKey);
      expect([await assign(), await show()]).to.deep.equal(['nothing', true]);
      expect(await refusal(fixture.chunk(device, early))).to.equal('nothing');
      expect(
        await refusal(
          fixture.start({
            targetProfileRef: { name: 'guarded' },
            packageRef: { name: 'early' },
            rollbackPackageRef: { name: '' },
          }),
        ),
      ).to.equal('nothing');
    });

    it('denies a package whose key is no longer trusted', async () => {
      const [device] = (await fixture.make(guarded, 1)) as [string];
      await fixture.overrides.set(tenant, device, signed);
      await fixture.trust();
      expect(await refusal(fixture.chunk(device, signed))).to.equal('FAILED_PRECONDITION');
      expect((await packages.get(tenant, signed)).signatureVerified).to.equal(false);
    });

    it('keeps a package deprecated that is rejected in between', async () => {
      await fixture.rows(`UPDATE ota_packages SET status = 'available' WHERE package_id = $1`, signed);
      await fixture.test.database.tenant(tenant, (tx) => setPackageAvailability(tx, tenant, signed, 'deprecated'));
      const [trusted] = await fixture.rows<{ trusted_signing_keys: string[] }>(
        'SELECT trusted_signing_keys FROM tenants WHERE tenant_id = $1',
        tenant,
      );
      const judged = async (): Promise<OtaPackage_Status | undefined> => {
        await packages.judgeSignatures(tenant);
        return (await packages.get(tenant, signed)).status;
      };
      expect(await judged()).to.equal(OtaPackage_Status.deprecated);
      await fixture.trust(later.publicKey);
      expect(await judged()).to.equal(OtaPackage_Status.rejected);
      await fixture.rows('UPDATE tenants SET trusted_signing_keys = $1', trusted!.trusted_signing_keys);
      expect(await judged()).to.equal(OtaPackage_Status.deprecated);
      await fixture.test.database.tenant(tenant, (tx) => setPackageAvailability(tx, tenant, signed, 'available'));
      expect(await judged()).to.equal(OtaPackage_Status.available);
    });

    it('pauses a rollout of a package whose key is removed, although the profile requires no signature', async () => {
      const open = await fixture.profile('open');
      await fixture.make(open, 2);
      const start = (name: string) =>
        fixture.start({
          targetProfileRef: { name: 'open' },
          packageRef: { name },
          rollbackPackageRef: { name: 'one' },
        });
      const id = await start('signed');
      const changeKeys = async (...keys: KeyObject[]) => {
        await fixture.trust(...keys);
        await fixture.test.database.tenant(tenant, (tx) => fixture.membership.signingKeysChanged(tx, tenant));
        return (await fixture.row(id))['phase'];
      };
      const before = await fixture.rows<{ trusted_signing_keys: string[] }>('SELECT trusted_signing_keys FROM tenants');
      const trusted = before[0]!.trusted_signing_keys.map((pem) => createPublicKey(pem));
      expect(await changeKeys(...trusted, later.publicKey), 'another key is added').to.equal('active');
      // Without any key there is nothing to verify, and the profile does not ask for it.
      expect(await changeKeys(), 'no key is left').to.equal('active');
      expect(await changeKeys(later.publicKey), 'its key is removed').to.equal('paused');
      expect((await fixture.rollouts.get(tenant, id)).pauseReasons).to.deep.equal([
        Rollout_PauseReason.signature_required,
      ]);
      const resume = () => refusal(fixture.rollouts.resume(fixture.context, id, undefined));
      expect(await resume()).to.equal('FAILED_PRECONDITION');
      expect(await changeKeys(...trusted), 'it continues only when somebody says so').to.equal('paused');
      expect(await resume()).to.equal('nothing');
      await fixture.rollouts.cancel(fixture.context, id);
      const plain = await start('unsigned');
      await fixture.trust(later.publicKey);
      await fixture.test.database.tenant(tenant, (tx) => fixture.membership.signingKeysChanged(tx, tenant));
      expect(await fixture.row(plain)).to.include({ phase: 'active' });
    });

    it('pauses a rollout although the change of the keys was missed, and the first attempt fails', async () => {
      const open = await fixture.profile('open');
      await fixture.make(open, 2);
      const id = await fixture.start({
        targetProfileRef: { name: 'open' },
        packageRef: { name: 'signed' },
        rollbackPackageRef: { name: 'one' },
      });
      // The notification has come before anybody listens for it, as while the connection that listens is lost.
      await new Promise<void>((resolve, reject) => {
        fixture.test.database.listen(
          [tenantChannel],
          () => resolve(),
          (lost) => {
            if (!lost) fixture.trust(later.publicKey).catch(reject);
          },
        );
      });
      let attempts = 0;
      const failing = new SigningKeys({
        ...{ database: fixture.test.database, packages, logger: createLogger('silent') },
        membership: {
          signingKeysChanged: async (tx, tenantId) => {
            attempts += 1;
            if (attempts === 1) throw new Error('the database is unavailable');
            await fixture.membership.signingKeysChanged(tx, tenantId);
          },
        },
      });
      failing.start();
      await eventually(async () => (await fixture.row(id))['phase'] === 'paused');
      await failing.stop();
      expect(attempts).to.equal(2);
    });

    it('looks at the rollouts of a tenant while those of another, whose rows are locked, have to wait', async () => {
      const seen: string[] = [];
      const { promise: released, resolve: release } = Promise.withResolvers<void>();
      const waiting = new SigningKeys({
        ...{ database: fixture.test.database, logger: createLogger('silent') },
        packages: { judgeSignatures: () => Promise.resolve() },
        membership: {
          signingKeysChanged: async (_tx, tenantId) => {
            seen.push(tenantId);
            if (tenantId === 'slow') await released;
          },
        },
      });
      waiting.start();
      try {
        for (const tenantId of ['slow', tenant]) {
          await eventually(async () => {
            await fixture.rows(`SELECT pg_notify('${tenantChannel}', $1)`, tenantId);
            return seen.includes(tenantId);
          });
        }
        expect(seen.filter((tenantId) => tenantId === 'slow')).to.have.length(1);
      } finally {
        release();
        await waiting.stop();
      }
    });

    it('pauses rollouts, judges packages again, and notifies the operator', async () => {
      await fixture.make(guarded, 2);
      const id = await fixture.start({
        targetProfileRef: { name: 'guarded' },
        packageRef: { name: 'signed' },
        rollbackPackageRef: { name: '' },
      });
      const early = await fixture.package('early', '4.0.0', { signed: later.privateKey });
      await fixture.rows(
        `UPDATE ota_packages SET status = 'rejected', rejection = 'SignatureInvalid' WHERE package_id = $1`,
        early,
      );
      const listener = new pg.Client({ connectionString: fixture.test.url });
      await listener.connect();
      const told = new Set<string>();
      listener.on('notification', ({ payload }) => told.add((JSON.parse(payload!) as { name: string }).name));
      await listener.query('LISTEN kellet_control');
      signingKeys.start();
      await eventually(async () => {
        await fixture.trust(later.publicKey);
        return (await packages.get(tenant, early)).status === OtaPackage_Status.available;
      });
      await eventually(async () => (await packages.get(tenant, signed)).status === OtaPackage_Status.rejected);
      // Rollouts are looked at apart from packages.
      await eventually(async () => (await fixture.row(id))['phase'] === 'paused');
      await listener.query('SELECT 1');
      expect([...told])
        .to.include.members(['early', 'signed', 'signed-older'])
        .and.not.to.include('unsigned');
      await listener.end();
    });
  });

  it('accepts a signed package, and says nothing of one that is not assigned', async () => {
    const [device] = (await fixture.make(guarded, 1)) as [string];
    expect(await refusal(fixture.chunk(device, newId()))).to.equal('PERMISSION_DENIED');
    await fixture.overrides.set(tenant, device, signed);
    expect(await refusal(fixture.chunk(device, signed.toUpperCase()))).to.equal('nothing');
  });
});
