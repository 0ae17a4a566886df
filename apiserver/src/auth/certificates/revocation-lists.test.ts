import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { expireDeviceKeys, revokeDeviceKeys } from '../device-credentials/device-keys.ts';
import { csrOf, newKeys } from '../testing/test-certificates.ts';
import { deviceCredentials, insertTenant } from '../testing/test-fixtures.ts';
import { MovableClock } from '../testing/test-platform.ts';
import { checkCertificateRequest } from './certificate-request.ts';
import { findSigningAuthority } from './certificate-store.ts';
import { RevocationLists } from './revocation-lists.ts';
import { X509Certificate, X509Crl } from './x509.ts';

const tenantId = 'acme';

describe('the revocation lists of a process', () => {
  const clock = new MovableClock();
  const issuer = deviceCredentials(clock);
  let test: TestDatabase;
  let lists: RevocationLists;
  let authorityId: string;
  let opened: number;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenantId);
    await certified();
    const authority = await test.database.tenant(tenantId, (tx) => findSigningAuthority(tx, tenantId));
    authorityId = authority!.authority_id;
  });
  beforeEach(() => {
    lists = new RevocationLists(test.database, clock);
    opened = 0;
  });
  after(() => test?.drop());

  const certified = async () => {
    const deviceId = newId();
    const request = await checkCertificateRequest(await csrOf(await newKeys()));
    const issued = await test.database.tenant(tenantId, async (tx) => {
      await tx.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2::uuid, 'd', $2)`, [
        tenantId,
        deviceId,
      ]);
      return issuer.issue(tx, { tenantId, deviceId }, { type: 'certificate', request });
    });
    return { deviceId, serialNumber: new X509Certificate(issued.certificate!).serialNumber };
  };
  const get = () =>
    lists.get({ tenantId, authorityId }, async () => {
      opened += 1;
      const row = await test.database.tenant(tenantId, (tx) => findSigningAuthority(tx, tenantId));
      return issuer.openAuthority(tenantId, row!);
    });
  const listed = async () => new X509Crl((await get()).der).entries.map(({ serialNumber }) => serialNumber);
  const end = (seconds: number, deviceId: string) =>
    test.database.tenant(tenantId, async (tx) => {
      if (seconds < 0) await revokeDeviceKeys(tx, tenantId, [deviceId]);
      else await expireDeviceKeys(tx, { tenantId, deviceId }, seconds);
    });

  it('contain what was revoked and what has been replaced, from the end of its grace period', async () => {
    const [revoked, ended, replaced, valid] = await Promise.all(Array.from({ length: 4 }, certified));
    await end(-1, revoked!.deviceId);
    await end(0, ended!.deviceId);
    await end(3600, replaced!.deviceId);
    const serials = await listed();
    expect(serials).to.include.members([revoked!.serialNumber, ended!.serialNumber]);
    expect(serials).not.to.include.oneOf([replaced!.serialNumber, valid!.serialNumber]);
    // A revocation within the grace period ends it.
    await end(-1, replaced!.deviceId);
    clock.advance(60_000);
    expect(await listed()).to.include(replaced!.serialNumber);
  });

  it('drop what has expired, but only after a day', async () => {
    const [recent, old] = [await certified(), await certified()];
    for (const [{ deviceId }, hours] of [
      [recent, 1],
      [old, 25],
    ] as const) {
      await end(-1, deviceId);
      await test.database.system((tx) =>
        tx.query(
          `UPDATE device_certificates SET not_after = now() - $2 * interval '1 hour', ended_at = now() - interval '2 days'
           WHERE device_id = $1`,
          [deviceId, hours],
        ),
      );
    }
    const serials = await listed();
    expect(serials).to.include(recent.serialNumber);
    expect(serials).not.to.include(old.serialNumber);
  });

  it('are built once for concurrent callers, and served for a minute', async () => {
    const all = await Promise.all(Array.from({ length: 20 }, get));
    expect(new Set(all.map(({ etag }) => etag)).size).to.equal(1);
    const { deviceId, serialNumber } = await certified();
    await end(-1, deviceId);
    clock.advance(59_999);
    expect((await get()).der.equals(all[0]!.der)).to.equal(true);
    expect(opened).to.equal(1);
    clock.advance(1);
    const next = await get();
    expect(opened).to.equal(2);
    expect(next.etag).not.to.equal(all[0]!.etag);
    expect(new X509Crl(next.der).findRevoked(serialNumber)).not.to.equal(null);
  });

  it('are built again by the next caller after a failure', async () => {
    const failing = lists.get({ tenantId, authorityId }, () => Promise.reject(new Error('sealed otherwise')));
    expect(await failing.catch((error: unknown) => error)).to.have.property('message', 'sealed otherwise');
    expect((await get()).der.length).to.be.greaterThan(100);
  });

  it('are passed on a limited number of times if they are large', async () => {
    const { deviceId } = await certified();
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO api_keys (key_id, tenant_id, key_hash, prefix, last4, revoked_at)
         SELECT gen_random_uuid(), $1, sha256(gen_random_uuid()::text::bytea), 'large', '', now() FROM generate_series(1, 40000)`,
        [tenantId],
      );
      await tx.query(
        `INSERT INTO device_certificates (tenant_id, key_id, device_id, authority_id, serial_number, certificate, public_key_hash,
           not_before, not_after, ended_at)
         SELECT tenant_id, key_id, $2, $3, encode(uuid_send(gen_random_uuid()), 'hex'), '', key_hash,
           now(), now() + interval '1 day', now()
         FROM api_keys WHERE tenant_id = $1 AND prefix = 'large'`,
        [tenantId, deviceId, authorityId],
      );
    });
    const passed = async (count: number) => {
      const results = await Promise.allSettled(Array.from({ length: count }, get));
      return results.filter(({ status }) => status === 'fulfilled').length;
    };
    expect(await passed(30)).to.equal(16);
    clock.advance(2000);
    expect(await passed(30)).to.equal(2);
  });
});
