import { create } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { expect } from 'chai';
import type { Database } from '../../../platform/database/database.ts';
import { newId } from '../../../platform/ids.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { rowsRead, totalOf } from '../../../platform/testing/rows-read.ts';
import { createProfileReader } from '../../provisioning/profiles.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { RolloutApplier } from './rollout-applier.ts';
import { Rollouts } from './rollouts.ts';

/** A rollout with hundreds of thousands of devices would otherwise be locked while a change of it reads them all. */
describe('a change of a rollout', function () {
  this.timeout(120_000);
  const sizes = [200, 5000] as const;
  /** Rows that the change of a large rollout may read more than that of a small one: index pages differ. */
  const scatter = 20;
  let fixture: RolloutFixture;
  const fleets: { readonly id: string; readonly meta: ReturnType<typeof metaOf>; readonly spec: OtaRolloutSpec }[] = [];

  const metaOf = (name: string) =>
    create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name, uid: newId() });

  before(async () => {
    fixture = await openRolloutFixture();
    for (const size of sizes) {
      const profile = `fleet-${size}`;
      await fixture.load(await fixture.profile(profile), size);
      // Each fleet is loaded with the same ones.
      await fixture.rows(`UPDATE devices SET hardware_id = device_id::text`);
      const spec: OtaRolloutSpec = {
        ...{ packageRef: { name: 'two' }, rollbackPackageRef: { name: 'one' }, targetProfileRef: { name: profile } },
        ...{ canaryPercent: 50, failureThresholdPercent: 100 },
      };
      const meta = metaOf(newId());
      const { id } = await new RolloutApplier(fixture.test.database, fixture.profiles, fixture.clock).apply(meta, spec);
      await fixture.schedule(id);
      expect((await fixture.members(id)).length).to.equal(size / 2);
      fleets.push({ id, meta, spec });
    }
    // Connections that are ended have counted what they have read.
    await fixture.rows(
      'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
    );
    await fixture.rows('SELECT pg_stat_force_next_flush()');
  });
  after(() => fixture.close());

  /** Returns the rows that a change reads, of each rollout. */
  const costs = async (change: (database: Database, fleet: (typeof fleets)[number]) => Promise<unknown>) => {
    const rows: number[] = [];
    for (const fleet of fleets)
      rows.push(totalOf(await rowsRead(fixture.test.url, (database) => change(database, fleet))));
    return rows;
  };
  const rolloutsOn = (database: Database) =>
    new Rollouts({
      ...{ database, profiles: createProfileReader(database), clock: fixture.clock },
      ...{ paging: new Paging(Buffer.alloc(32)), writer: undefined as never },
    });
  const applied = (change: Partial<OtaRolloutSpec>) => (database: Database, fleet: (typeof fleets)[number]) =>
    new RolloutApplier(database, createProfileReader(database), fixture.clock).apply(fleet.meta, {
      ...fleet.spec,
      ...change,
    });

  const changes = [
    ['that is applied again and observed', applied({})],
    ['that pauses it by its manifest', applied({ paused: true })],
    ['that resumes it by its manifest', applied({ paused: false })],
    ['that raises it by its manifest', applied({ canaryPercent: 60 })],
    ['that pauses it', (database, { id }) => rolloutsOn(database).pause(fixture.context, id)],
    ['that resumes it', (database, { id }) => rolloutsOn(database).resume(fixture.context, id, undefined)],
    ['that raises it', (database, { id }) => rolloutsOn(database).raise(fixture.context, id, 70)],
  ] as const satisfies readonly (readonly [string, Parameters<typeof costs>[0]])[];
  for (const [title, change] of changes)
    it(`${title} reads as much of a large one as of a small one`, async () => {
      const [small, large] = await costs(change);
      expect(small).to.be.greaterThan(0);
      expect(large, `${small} rows of a small one`).to.be.at.most(small! + scatter);
    });
});
