// How long the batches of a tenant stay open, from the request that sets it to the proof.
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice, platformAdmin, unique } from '../testing/fixtures.ts';

interface Batch {
  batch_id: string;
  status: string;
  created_at: string;
  sealed_at?: string;
}

describe('batch_seconds', function () {
  this.timeout(90_000);
  const tenantId = unique('batches');
  let platform: Rest;
  let rest: Rest;

  before(async () => {
    platform = await platformAdmin();
    const account = { email: `admin@${tenantId}.test`, password: 'correct horse battery' };
    await platform.post('/api/v1/tenants', {
      ...{ tenant_id: tenantId, name: 'Rare', admin_email: account.email, admin_password: account.password },
      batch_seconds: 5,
    });
    rest = await Rest.login(stack().info.rest, account);
  });
  after(() => platform.delete(`/api/v1/tenants/${tenantId}`));

  const send = async (by: Rest) => {
    const device = await makeDevice(by);
    await device.send([{ timestamp: new Date().toISOString(), numeric_values: { level: 1 }, string_values: {} }]);
    const { points } = await by.get<{ points: { data_hash: string }[] }>(`/api/v1/telemetry/${device.deviceId}`);
    return points[0]!.data_hash;
  };
  const proven = (by: Rest, hash: string) =>
    waitUntil(
      async () => {
        const { status, body } = await by.send<{ batch_id: string }>('GET', `/api/v1/verify/hash/${hash}`);
        return status === 200 && body;
      },
      { what: 'a proof', timeoutMilliseconds: 60_000 },
    );

  it('keeps the batches of its tenant open for longer than the installation does', async () => {
    expect(await rest.get('/api/v1/tenant')).to.include({ batch_seconds: 5 });
    const { batch_id: batchId } = await proven(rest, await send(rest));
    const batch = await rest.get<Batch>(`/api/v1/anchors/batches/${batchId}`);
    expect(Date.parse(batch.sealed_at!) - Date.parse(batch.created_at)).to.be.at.least(4900);
  });

  it('can be changed by the tenant, up to an hour, and concerns no other', async () => {
    const refused = await rest.send<{ message: string }>('PATCH', '/api/v1/tenant', { body: { batch_seconds: 3601 } });
    expect(refused).to.deep.include({ status: 400 });
    expect(refused.body.message).to.equal('batch_seconds must be at most 3600');
    expect(await rest.patch('/api/v1/tenant', { batch_seconds: 3600 })).to.include({ batch_seconds: 3600 });
    const openBatches = async () => {
      await send(rest);
      const { batches } = await rest.get<{ batches: Batch[] }>('/api/v1/anchors', { status: 'open' });
      return batches;
    };
    // A batch that was opened before the writer knew of the change is sealed as before.
    const other = await admin();
    await proven(other, await send(other));
    const first = await openBatches();
    await proven(other, await send(other));
    await proven(other, await send(other));
    expect((await openBatches()).map((batch) => batch.batch_id)).to.deep.equal(first.map((batch) => batch.batch_id));
  });
});
