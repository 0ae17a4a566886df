// What a profile that requires signatures keeps from its devices, whichever way an unsigned package would come.
import { createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { OtaPackage_Status, Rollout_PauseReason } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import pg from 'pg';
import { eventually } from '../../../platform/testing/eventually.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/paging.ts';
import { recountRollouts } from '../rollouts/stores/rollout-store.ts';
import { SigningKeys } from '../signing-keys.ts';
import { testIntake } from '../testing/test-artifacts.ts';
import { setPackageAvailability } from './package-store.ts';
import { Packages } from './packages.ts';
import { newId } from '../../../platform/ids.ts';
import { profileRolloutsLock } from '../../../platform/database/advisory-locks.ts';
import { openGround, refusal, tenant, type Ground } from '../testing/test-ground.ts';

describe('a required signature', () => {
  let ground: Ground;
  let guarded: string;
  let signed: string;
  let signedOlder: string;
  let unsigned: string;
  beforeEach(async () => {
    ground = await openGround();
    guarded = await ground.profile('guarded', { requireSignature: true });
    signed = await ground.package('signed', '3.0.0', { signed: true });
    signedOlder = await ground.package('signed-older', '2.5.0', { signed: true });
    unsigned = await ground.package('unsigned', '3.1.0');
  });
  afterEach(() => ground.close());

  it('keeps a rollout of an unsigned package from being created, and one that would go back to one', async () => {
    await ground.make(guarded, 2);
    const rollout = (name: string, rollback: string) =>
      refusal(
        ground.start({
          targetProfileRef: { name: 'guarded' },
          packageRef: { name },
          rollbackPackageRef: { name: rollback },
          canaryPercent: 100,
        }),
      );
    expect(await rollout('unsigned', 'signed-older')).to.equal('SignatureRequired');
    expect(await rollout('signed', 'unsigned')).to.equal('SignatureRequired');
    expect(await ground.rows('SELECT FROM ota_rollouts')).to.have.length(0);
    expect(await rollout('signed', 'signed-older')).to.equal('nothing');
  });

  it('keeps an unsigned package from becoming the rollback package later', async () => {
    await ground.make(guarded, 1);
    const id = await ground.start({
      targetProfileRef: { name: 'guarded' },
      packageRef: { name: 'signed' },
      rollbackPackageRef: { name: 'signed-older' },
    });
    expect(await refusal(ground.apply(id, { rollbackPackageRef: { name: 'unsigned' } }))).to.equal('SignatureRequired');
    expect(await ground.row(id)).to.include({ rollback_package_id: signedOlder });
  });

  it('rejects an assignment of an unsigned package, by the profile or the tenant’s defaults', async () => {
    const [device] = (await ground.make(guarded, 1)) as [string];
    const [plain] = (await ground.make('', 1)) as [string];
    const assign = (deviceId: string, packageId: string) => refusal(ground.overrides.set(tenant, deviceId, packageId));
    expect(await assign(device, unsigned)).to.equal('FAILED_PRECONDITION');
    expect(await refusal(ground.metadata(device))).to.equal('NOT_FOUND');
    expect(await assign(device, signed)).to.equal('nothing');
    expect(await assign(plain, unsigned)).to.equal('nothing');
    await ground.rows(`UPDATE tenants SET defaults = '{"ota_policy": {"require_signature": true}}'`);
    expect(await assign(plain, unsigned)).to.equal('FAILED_PRECONDITION');
    // What was assigned before is not delivered any more.
    expect(await refusal(ground.chunk(plain, unsigned))).to.equal('FAILED_PRECONDITION');
    expect(await refusal(ground.metadata(plain))).to.equal('FAILED_PRECONDITION');
    expect(await assign(plain, signed)).to.equal('nothing');
    expect(await refusal(ground.chunk(plain, signed))).to.equal('nothing');
  });

  it('applies to an assignment from before the device got the profile', async () => {
    const open = await ground.profile('open');
    const [device] = (await ground.make(open, 1)) as [string];
    await ground.overrides.set(tenant, device, unsigned);
    expect(await refusal(ground.chunk(device, unsigned))).to.equal('nothing');
    await ground.move(device, guarded);
    expect(await refusal(ground.chunk(device, unsigned))).to.equal('FAILED_PRECONDITION');
  });

  it('pauses running rollouts of unsigned packages when it begins, denies what was on its way, and lets none resume', async () => {
    const open = await ground.profile('open');
    await ground.make(open, 4);
    const id = await ground.start({
      targetProfileRef: { name: 'open' },
      packageRef: { name: 'unsigned' },
      canaryPercent: 50,
    });
    const member = (await ground.members(id))[0]!;
    expect(await refusal(ground.chunk(member.device_id, unsigned))).to.equal('nothing');
    await ground.profile('open', { requireSignature: true });
    expect(await ground.row(id)).to.include({ phase: 'paused' });
    expect(await ground.rollouts.get(tenant, id)).to.deep.include({
      message: 'paused: the package has no signature by a trusted key',
      pauseReasons: [Rollout_PauseReason.signature_required],
    });
    expect(await ground.events(id)).to.deep.equal(['started', 'paused']);
    expect(await refusal(ground.chunk(member.device_id, unsigned))).to.equal('FAILED_PRECONDITION');
    const resume = () => refusal(ground.rollouts.resume(ground.context, id, undefined));
    expect(await resume()).to.equal('FAILED_PRECONDITION');
    // The way back is unsigned as well.
    expect(await refusal(ground.rollouts.rollback(ground.context, id))).to.equal('FAILED_PRECONDITION');
    expect(await ground.row(id)).to.include({ phase: 'paused', rollback_requested_at: null });
    await ground.profile('open');
    expect(await ground.row(id), 'it goes on only when somebody says so').to.include({ phase: 'paused' });
    expect(await resume()).to.equal('nothing');
    expect(await refusal(ground.chunk(member.device_id, unsigned))).to.equal('nothing');
  });

  describe('when it begins while something waits for a lock', () => {
    /** Has the profile require signatures in a transaction that holds a lock for which `work` waits. */
    const during = async (profileId: string, lock: string, value: string, work: () => Promise<unknown>) => {
      const url = new URL(process.env['KELLET_TEST_DATABASE_URL']!);
      url.pathname = new URL(ground.test.url).pathname;
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
      const open = await ground.profile('open');
      await ground.make(open, 2);
      const start = () =>
        ground.start({ targetProfileRef: { name: 'open' }, packageRef: { name: 'unsigned' }, canaryPercent: 50 });
      const lock = 'SELECT pg_advisory_xact_lock(hashtextextended($1, 0))';
      expect(await during(open, lock, profileRolloutsLock(tenant, open), start)).to.equal('SignatureRequired');
    });

    it('resumes none', async () => {
      const open = await ground.profile('open');
      await ground.make(open, 2);
      const id = await ground.start({
        targetProfileRef: { name: 'open' },
        packageRef: { name: 'unsigned' },
        canaryPercent: 50,
      });
      await ground.rollouts.pause(ground.context, id);
      const resume = () => ground.rollouts.resume(ground.context, id, undefined);
      const lock = 'SELECT FROM ota_rollouts WHERE rollout_id = $1 FOR UPDATE';
      expect(await during(open, lock, id, resume)).to.equal('FAILED_PRECONDITION');
    });
  });

  it('denies a rollback package that is on its way when it begins', async () => {
    const open = await ground.profile('open');
    const [device] = (await ground.make(open, 1)) as [string];
    const id = await ground.start({
      targetProfileRef: { name: 'open' },
      packageRef: { name: 'signed' },
      rollbackPackageRef: { name: 'unsigned' },
      canaryPercent: 100,
    });
    await ground.report(device, id, '3.0.0');
    await ground.rollouts.rollback(ground.context, id);
    expect(await refusal(ground.chunk(device, unsigned))).to.equal('nothing');
    await ground.profile('open', { requireSignature: true });
    expect(await refusal(ground.chunk(device, unsigned))).to.equal('FAILED_PRECONDITION');
  });

  it('schedules no device for a rollout of an unsigned package that was created before', async () => {
    const open = await ground.profile('open');
    await ground.make(open, 4);
    const id = await ground.start({
      targetProfileRef: { name: 'open' },
      packageRef: { name: 'unsigned' },
      canaryPercent: 50,
    });
    // As if the profile had changed between the judgement and the creation.
    await ground.rows(
      `UPDATE profiles SET document = '{"type": "sensor", "ota_policy": {"require_signature": true}}' WHERE name = 'open'`,
    );
    await ground.make(open, 4);
    await ground.schedule(id);
    expect(await ground.row(id)).to.include({ phase: 'paused', scheduled: 2, eligible: 8 });
  });

  describe('with keys that change', () => {
    let packages: Packages;
    let signingKeys: SigningKeys;
    const later = generateKeyPairSync('ed25519');
    beforeEach(() => {
      const { database } = ground.test;
      const logger = createLogger('silent');
      packages = new Packages({
        ...{ database, logger, writer: undefined as never, paging: new Paging(Buffer.alloc(32)) },
        ...{ artifacts: testIntake(), compatibilityChanged: recountRollouts },
      });
      signingKeys = new SigningKeys({ database, packages, membership: ground.membership, logger });
    });
    afterEach(async () => {
      await signingKeys.stop();
      await packages.stop();
    });

    it('accepts a package that was made before its key was trusted', async () => {
      const [device] = (await ground.make(guarded, 1)) as [string];
      const early = await ground.package('early', '4.0.0', { signed: later.privateKey });
      const assign = () => refusal(ground.overrides.set(tenant, device, early));
      const show = async () => (await packages.get(tenant, early)).signatureVerified;
      expect([await assign(), await show()]).to.deep.equal(['FAILED_PRECONDITION', false]);
      await ground.trust(later.publicKey);
      expect([await assign(), await show()]).to.deep.equal(['nothing', true]);
      expect(await refusal(ground.chunk(device, early))).to.equal('nothing');
      expect(
        await refusal(
          ground.start({
            targetProfileRef: { name: 'guarded' },
            packageRef: { name: 'early' },
            rollbackPackageRef: { name: '' },
          }),
        ),
      ).to.equal('nothing');
    });

    it('denies a package whose key is no longer trusted', async () => {
      const [device] = (await ground.make(guarded, 1)) as [string];
      await ground.overrides.set(tenant, device, signed);
      await ground.trust();
      expect(await refusal(ground.chunk(device, signed))).to.equal('FAILED_PRECONDITION');
      expect((await packages.get(tenant, signed)).signatureVerified).to.equal(false);
    });

    it('keeps a package deprecated that is rejected in between', async () => {
      await ground.rows(`UPDATE ota_packages SET status = 'available' WHERE package_id = $1`, signed);
      await ground.test.database.tenant(tenant, (tx) => setPackageAvailability(tx, tenant, signed, 'deprecated'));
      const [trusted] = await ground.rows<{ trusted_signing_keys: string[] }>(
        'SELECT trusted_signing_keys FROM tenants WHERE tenant_id = $1',
        tenant,
      );
      const judged = async (): Promise<OtaPackage_Status | undefined> => {
        await packages.judgeSignatures(tenant);
        return (await packages.get(tenant, signed)).status;
      };
      expect(await judged()).to.equal(OtaPackage_Status.deprecated);
      await ground.trust(later.publicKey);
      expect(await judged()).to.equal(OtaPackage_Status.rejected);
      await ground.rows('UPDATE tenants SET trusted_signing_keys = $1', trusted!.trusted_signing_keys);
      expect(await judged()).to.equal(OtaPackage_Status.deprecated);
      await ground.test.database.tenant(tenant, (tx) => setPackageAvailability(tx, tenant, signed, 'available'));
      expect(await judged()).to.equal(OtaPackage_Status.available);
    });

    it('pauses a rollout of a package whose key is removed, although the profile requires no signature', async () => {
      const open = await ground.profile('open');
      await ground.make(open, 2);
      const start = (name: string) =>
        ground.start({ targetProfileRef: { name: 'open' }, packageRef: { name }, rollbackPackageRef: { name: 'one' } });
      const id = await start('signed');
      const changeKeys = async (...keys: KeyObject[]) => {
        await ground.trust(...keys);
        await ground.test.database.tenant(tenant, (tx) => ground.membership.signingKeysChanged(tx, tenant));
        return (await ground.row(id))['phase'];
      };
      const before = await ground.rows<{ trusted_signing_keys: string[] }>('SELECT trusted_signing_keys FROM tenants');
      const trusted = before[0]!.trusted_signing_keys.map((pem) => createPublicKey(pem));
      expect(await changeKeys(...trusted, later.publicKey), 'another key is added').to.equal('active');
      // Without any key there is nothing to verify, and the profile does not ask for it.
      expect(await changeKeys(), 'no key is left').to.equal('active');
      expect(await changeKeys(later.publicKey), 'its key is removed').to.equal('paused');
      expect((await ground.rollouts.get(tenant, id)).pauseReasons).to.deep.equal([
        Rollout_PauseReason.signature_required,
      ]);
      const resume = () => refusal(ground.rollouts.resume(ground.context, id, undefined));
      expect(await resume()).to.equal('FAILED_PRECONDITION');
      expect(await changeKeys(...trusted), 'it continues only when somebody says so').to.equal('paused');
      expect(await resume()).to.equal('nothing');
      await ground.rollouts.cancel(ground.context, id);
      const plain = await start('unsigned');
      await ground.trust(later.publicKey);
      await ground.test.database.tenant(tenant, (tx) => ground.membership.signingKeysChanged(tx, tenant));
      expect(await ground.row(plain)).to.include({ phase: 'active' });
    });

    it('pauses rollouts, judges packages again, and notifies the operator', async () => {
      await ground.make(guarded, 2);
      const id = await ground.start({
        targetProfileRef: { name: 'guarded' },
        packageRef: { name: 'signed' },
        rollbackPackageRef: { name: '' },
      });
      const early = await ground.package('early', '4.0.0', { signed: later.privateKey });
      await ground.rows(
        `UPDATE ota_packages SET status = 'rejected', rejection = 'SignatureInvalid' WHERE package_id = $1`,
        early,
      );
      const listener = new pg.Client({ connectionString: ground.test.url });
      await listener.connect();
      const told = new Set<string>();
      listener.on('notification', ({ payload }) => told.add((JSON.parse(payload!) as { name: string }).name));
      await listener.query('LISTEN kellet_control');
      signingKeys.start();
      await eventually(async () => {
        await ground.trust(later.publicKey);
        return (await packages.get(tenant, early)).status === OtaPackage_Status.available;
      });
      await eventually(async () => (await packages.get(tenant, signed)).status === OtaPackage_Status.rejected);
      expect(await ground.row(id)).to.include({ phase: 'paused' });
      await listener.query('SELECT 1');
      expect([...told])
        .to.include.members(['early', 'signed', 'signed-older'])
        .and.not.to.include('unsigned');
      await listener.end();
    });
  });

  it('accepts a signed package, and says nothing of one that is not assigned', async () => {
    const [device] = (await ground.make(guarded, 1)) as [string];
    expect(await refusal(ground.chunk(device, newId()))).to.equal('PERMISSION_DENIED');
    await ground.overrides.set(tenant, device, signed);
    expect(await refusal(ground.chunk(device, signed.toUpperCase()))).to.equal('nothing');
  });
});
