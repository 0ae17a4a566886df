import { Kind } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import type { Database } from '../platform/database/database.ts';
import { rowsRead, totalOf } from '../platform/testing/rows-read.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { listWorkingCopies } from './working-copies.ts';

describe('the list of working copies', () => {
  let test: TestDatabase;
  const { signal } = new AbortController();

  before(async () => {
    test = await createTestDatabase();
    for (const tenantId of ['acme', 'other', 'small']) await insertTenant(test.database, tenantId);
    await fill('acme', 1200);
    await fill('other', 900);
  });
  after(() => test.drop());

  /** Adds so many copies of each kind, and twice as many rollouts that are completed and packages that were deleted. */
  async function fill(tenantId: string, count: number): Promise<void> {
    const statements = [
      `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
       SELECT $1, gen_random_uuid(), $1, 'profile-' || n, 'Profile', jsonb_build_object('type', n) FROM generate_series(1, $2::int4) AS n`,
      `INSERT INTO provisioning_templates (tenant_id, template_id, namespace, resource_name, name, profile_id, hardware_id_pattern, one_time,
         credential_type, enabled, key_hash)
       SELECT tenant_id, gen_random_uuid(), namespace, resource_name, 'Template', profile_id, '*', false, 'api_key', true,
         sha256(profile_id::text::bytea) FROM profiles p WHERE tenant_id = $1
         AND NOT EXISTS (SELECT FROM provisioning_templates t WHERE t.tenant_id = p.tenant_id AND t.profile_id = p.profile_id) LIMIT $2`,
      `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature, size_bytes,
         status, deleted_at)
       SELECT $1, gen_random_uuid(), 'package-' || n, 'Package', 'fw', '1', '', sha256(n::text::bytea), '', 1, 'available',
         CASE WHEN n > $2 THEN now() END FROM generate_series(1, 3 * $2::int4) AS n`,
      `INSERT INTO ota_rollouts (tenant_id, rollout_id, namespace, name, display_name, package_id, profile_id, spec, phase)
       SELECT $1, gen_random_uuid(), $1, 'rollout-' || n, 'Rollout', gen_random_uuid(), gen_random_uuid(), '{}',
         CASE WHEN n > $2 THEN 'completed' ELSE 'active' END FROM generate_series(1, 3 * $2::int4) AS n`,
    ];
    for (const text of statements) await test.database.system((tx) => tx.query(text, [tenantId, count]));
    await test.database.system((tx) => tx.query('ANALYZE'));
  }

  interface Copy {
    readonly kind?: Kind;
    readonly tenantId?: string;
    readonly namespace?: string;
    readonly name?: string;
    readonly digest?: bigint;
  }

  const textOf = ({ kind, tenantId, namespace, name, digest }: Copy): string =>
    `${kind} ${tenantId} ${namespace} ${name} ${digest}`;

  /** Reads a page. Returns also the numbers of copies of its messages. */
  async function read(pageSize: number, pageToken: string, database: Database = test.database) {
    const copies: string[] = [];
    const messages: number[] = [];
    let next = '';
    for await (const message of listWorkingCopies(database, { pageSize, pageToken }, signal)) {
      copies.push(...message.workingCopies!.map(textOf));
      messages.push(message.workingCopies!.length);
      next = message.nextPageToken!;
    }
    return { copies, messages, next };
  }

  /** Returns all copies as the view has them. */
  async function everything(): Promise<string[]> {
    const kindOf: Record<string, Kind> = {
      Tenant: Kind.TENANT,
      DeviceProfile: Kind.DEVICE_PROFILE,
      ProvisioningTemplate: Kind.PROVISIONING_TEMPLATE,
      OtaPackage: Kind.OTA_PACKAGE,
      OtaRollout: Kind.OTA_ROLLOUT,
    };
    const { rows } = await test.database.system((tx) =>
      tx.query<Copy & { kind_name: string; tenant_id: string; digest: bigint }>(
        'SELECT kind AS kind_name, tenant_id, namespace, name, digest FROM working_copies',
      ),
    );
    return rows.map(({ kind_name, tenant_id, digest, ...row }) =>
      textOf({ ...row, kind: kindOf[kind_name]!, tenantId: tenant_id, digest: BigInt.asUintN(64, digest) }),
    );
  }

  it('has each copy once, as a whole and in pages of any size', async () => {
    const wanted = (await everything()).sort();
    expect(wanted).to.have.length(3 + 4 * (1200 + 900));
    const whole = await read(0, '');
    expect(whole.next).to.equal('');
    expect(Math.max(...whole.messages)).to.equal(1000);
    expect(whole.copies.toSorted()).to.deep.equal(wanted);
    for (const size of [1, 7, 500, 999, 1000, 1201, 2500, 100_000]) {
      const copies: string[] = [];
      // A page each, but of a single copy only the first hundred.
      let [token, pages] = ['', 0];
      do {
        const page = await read(size, token);
        expect(page.copies.length, 'a page of its size, unless it is the last').to.satisfy(
          (length: number) => length === size || page.next === '',
        );
        copies.push(...page.copies);
        token = page.next;
        pages += 1;
      } while (token !== '' && (size > 7 || pages < 100));
      expect(copies, `pages of ${size}`).to.deep.equal(whole.copies.slice(0, copies.length));
      if (size > 7) expect(copies, `pages of ${size}`).to.have.length(wanted.length);
    }
  });

  it('goes on behind a copy that was deleted meanwhile, and shows one that was added', async () => {
    const first = await read(5, '');
    const { next } = await read(2, first.next);
    await test.database.system((tx) => tx.query(`DELETE FROM profiles WHERE tenant_id = 'small'`));
    const insert = `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
      VALUES ('small', gen_random_uuid(), 'small', 'late', 'Late', '{}')`;
    await test.database.system((tx) => tx.query(insert));
    const { copies } = await read(0, next);
    expect([...first.copies, ...(await read(2, first.next)).copies, ...copies].toSorted()).to.deep.equal(
      (await everything()).sort(),
    );
    await test.database.system((tx) => tx.query(`DELETE FROM profiles WHERE tenant_id = 'small'`));
  });

  it('refuses an invalid token', async () => {
    for (const token of [
      'x',
      'Tenant',
      'Tenant/acme',
      'Device/acme/00000000-0000-0000-0000-000000000000',
      'Tenant/a/b/c',
    ]) {
      const error = await read(1, token).catch((thrown: unknown) => thrown);
      expect(error, token).to.include({ code: 'INVALID_ARGUMENT' });
    }
  });

  it('reads what it returns, whatever is stored', async () => {
    await fill('acme', 10_000);
    const pageSize = 200;
    // In the middle of each kind.
    for (const kind of ['DeviceProfile', 'ProvisioningTemplate', 'OtaPackage', 'OtaRollout']) {
      const token = `${kind}/acme/80000000-0000-4000-8000-000000000000`;
      const rows = await rowsRead(test.url, (database) => read(pageSize, token, database));
      // A package with its tenant and its artifact, a template with its key.
      expect(totalOf(rows), `${kind}: ${JSON.stringify([...rows])}`).to.be.within(pageSize, 3 * pageSize + 10);
    }
  });
});
