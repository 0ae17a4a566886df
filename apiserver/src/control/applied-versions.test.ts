import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { newId } from '../platform/ids.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { forgetDeleted, isOvertaken, noteDeletion, takeUp } from './applied-versions.ts';

describe('applied versions', () => {
  let test: TestDatabase;
  before(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
  });
  after(() => test.drop());

  const metaOf = (name: string, uid: string, resourceVersion: string, tenantId = 'acme') =>
    create(ObjectMetaSchema, { tenantId, namespace: 'kellet-acme', name, uid, resourceVersion });
  type Meta = ReturnType<typeof metaOf>;
  const apply = (meta: Meta, kind: 'OtaPackage' | 'OtaRollout' = 'OtaPackage') =>
    test.database
      .tenant(meta.tenantId, (tx) => takeUp(tx, kind, meta))
      .then(
        () => 'applied',
        (error: unknown) => (isOvertaken(error) ? 'overtaken' : String(error)),
      );
  const remove = (meta: Meta) =>
    test.database.system(async (tx) => ((await noteDeletion(tx, 'OtaPackage', meta)) ? 'removed' : 'superseded'));
  /** Makes all records older by this time. */
  const pass = (time: string) =>
    test.database.system((tx) =>
      tx.query('UPDATE applied_versions SET applied_at = applied_at - $1::interval', [time]),
    );

  /** Steps for one resource name, as `verb uid version`, and their outcomes. */
  const tables: Record<string, [step: string, outcome: string][]> = {
    'can be applied again, but never replaced by older ones': [
      ['apply a 10', 'applied'],
      ['apply a 10', 'applied'],
      ['apply a 9', 'overtaken'],
      ['apply a 11', 'applied'],
      ['apply a 10', 'overtaken'],
    ],
    'are compared as numbers of any length': [
      ['apply a 9', 'applied'],
      ['apply a 10', 'applied'],
      ['apply a 99999999999999999999999999999999', 'applied'],
      ['apply a 100', 'overtaken'],
    ],
    'start again when the resource is recreated': [
      ['apply a 10', 'applied'],
      ['apply b 3', 'applied'],
      ['apply b 2', 'overtaken'],
    ],
    'are not compared if they are not numbers': [
      ['apply a 10', 'applied'],
      ['apply a x', 'applied'],
      ['apply a 9', 'applied'],
    ],
    'take precedence for five minutes only, because the cluster may have been restored': [
      ['apply a 10', 'applied'],
      ['pass 4 minutes', ''],
      ['apply a 5', 'overtaken'],
      ['pass 2 minutes', ''],
      ['apply a 5', 'applied'],
      ['apply a 4', 'overtaken'],
    ],
    'are not applied after the deletion of the resource': [
      ['apply a 10', 'applied'],
      ['remove a 10', 'removed'],
      ['apply a 10', 'overtaken'],
      ['apply a 11', 'overtaken'],
      ['remove a 12', 'removed'],
      ['apply b 20', 'applied'],
      // A late deletion does not remove the next resource with this name.
      ['remove a 12', 'superseded'],
      ['apply b 20', 'applied'],
      ['remove b 20', 'removed'],
      ['pass 6 minutes', ''],
      // Restored from a backup.
      ['apply b 15', 'applied'],
    ],
    'are rejected if the deletion arrives first': [
      ['remove a 10', 'removed'],
      ['apply a 9', 'overtaken'],
      ['apply b 3', 'applied'],
    ],
  };
  for (const [what, steps] of Object.entries(tables)) {
    it(what, async () => {
      const name = newId();
      for (const [index, [step, outcome]] of steps.entries()) {
        const [verb, ...rest] = step.split(' ');
        if (verb === 'pass') await pass(rest.join(' '));
        else {
          const meta = metaOf(name, rest[0]!, rest[1]!);
          expect(await (verb === 'apply' ? apply(meta) : remove(meta)), `${index}: ${step}`).to.equal(outcome);
        }
      }
    });
  }

  it('are recorded per kind, name and tenant', async () => {
    const name = newId();
    expect(await apply(metaOf(name, 'a', '10'))).to.equal('applied');
    expect(await apply(metaOf(name, 'a', '9'), 'OtaRollout')).to.equal('applied');
    expect(await apply(metaOf(`${name}x`, 'a', '9'))).to.equal('applied');
    expect(await apply(metaOf(name, 'a', '9', 'other'))).to.equal('applied');
  });

  it('are not recorded if the transaction fails', async () => {
    const meta = metaOf(newId(), 'a', '10');
    const refused = test.database.tenant('acme', async (tx) => {
      await takeUp(tx, 'OtaPackage', meta);
      throw new Error('refused');
    });
    await refused.catch(() => undefined);
    expect(await apply(metaOf(meta.name, 'a', '9'))).to.equal('applied');
  });

  it('are written one at a time: of two concurrent ones, the older is rejected', async () => {
    const name = newId();
    const [taken, end] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const newer = test.database.tenant('acme', async (tx) => {
      await takeUp(tx, 'OtaPackage', metaOf(name, 'a', '10'));
      taken.resolve();
      await end.promise;
    });
    await taken.promise;
    const older = apply(metaOf(name, 'a', '9'));
    const waits = `SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`;
    await eventually(async () => (await test.database.system((tx) => tx.query(waits))).rowCount === 1);
    end.resolve();
    await newer;
    expect(await older).to.equal('overtaken');
  });

  it('of deleted resources are dropped after five minutes', async () => {
    await remove(metaOf('gone', 'a', '10'));
    const count = async () =>
      (await test.database.system((tx) => tx.query(`SELECT FROM applied_versions WHERE name = 'gone'`))).rowCount;
    await test.database.system(forgetDeleted);
    expect(await count()).to.equal(1);
    await pass('6 minutes');
    await test.database.system(forgetDeleted);
    expect(await count()).to.equal(0);
  });
});
