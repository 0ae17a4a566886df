import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { newId } from '../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { claimDeliveries } from './webhook-store.ts';

describe('deliveries that are claimed', () => {
  let test: TestDatabase;
  const webhookId = newId();
  const deliveries = [newId(), newId(), newId()];
  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO webhooks (tenant_id, webhook_id, url, secret, events) VALUES ('acme', $1, 'http://a', 'sealed', '{*}')`,
        [webhookId],
      );
      await tx.query(
        `INSERT INTO webhook_deliveries (tenant_id, webhook_id, delivery_id, event_id, subject, event, next_at)
         SELECT 'acme', $1, d, gen_random_uuid(), 'rollout.completed', '{}', now() FROM unnest($2::uuid[]) AS d`,
        [webhookId, deliveries],
      );
    });
  });
  after(() => test.drop());

  it('are not those that another transaction holds, for which it could wait for ever', async () => {
    const claim = () =>
      test.database.system((tx) =>
        claimDeliveries(tx, { limit: 10, perWebhook: 10, except: [], busy: { tenants: [], running: [] } }),
      );
    const claimed = await test.database.system(async (holder) => {
      await holder.query('SELECT FROM webhook_deliveries WHERE delivery_id = $1 FOR UPDATE', [deliveries[1]]);
      return claim();
    });
    expect(claimed.map((one) => one.delivery_id)).to.have.members([deliveries[0], deliveries[2]]);
    expect((await claim()).map((one) => one.delivery_id)).to.deep.equal([deliveries[1]]);
    expect(await claim()).to.deep.equal([]);
  });
});
