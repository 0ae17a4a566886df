import { create } from '@bufbuild/protobuf';
import { CreateRolloutRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { unavailable } from '../../../../platform/errors.ts';
import { namedId } from '../../../../platform/ids.ts';
import { Paging } from '../../../../platform/requests/paging.ts';
import type { ResourceWriter } from '../../../../resources/resource-writer.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../../testing/rollout-fixture.ts';
import { Rollouts } from '../rollouts.ts';

describe('plans of rollouts', () => {
  let fixture: RolloutFixture;
  before(async () => (fixture = await openRolloutFixture()));
  after(() => fixture.close());

  it('are made a few at a time, those of another tenant meanwhile', async () => {
    const asked = Promise.withResolvers<void>();
    const answer = Promise.withResolvers<never>();
    let planning = 0;
    let most = 0;
    const foresee = async () => {
      planning += 1;
      most = Math.max(most, planning);
      if (planning === 2) asked.resolve();
      await answer.promise.finally(() => (planning -= 1));
    };
    const { clock, context, profiles, test } = fixture;
    const rollouts = new Rollouts({
      ...{ database: test.database, profiles, clock, paging: new Paging(Buffer.alloc(32)) },
      writer: { foresee } as unknown as ResourceWriter,
    });
    const request = create(CreateRolloutRequestSchema, {
      canaryPercent: 10,
      packageId: namedId(tenant, 'package', 'two'),
      targetProfileId: namedId(tenant, 'profile', 'sensor'),
    });
    const plans = Array.from({ length: 10 }, () => refusal(rollouts.plan(request, context)));
    await Promise.race([asked.promise, Promise.all(plans)]);
    expect(await refusal(rollouts.plan(request, { ...context, tenantId: 'other' }))).to.equal('NOT_FOUND');
    answer.reject(unavailable('the API server does not answer'));
    expect(await Promise.all(plans)).to.deep.equal(plans.map(() => 'UNAVAILABLE'));
    expect(most).to.equal(2);
  });
});
