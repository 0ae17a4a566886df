import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { Client, type ClientReadableStream, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import {
  AdvanceRolloutRequestSchema,
  type AdvanceRolloutResponse,
  ApplyRequestSchema,
  type ApplyResponse,
  ControlService,
  Kind,
  type ListWorkingCopiesRequest,
  type ObjectMetaSchema,
  RemoveRequestSchema,
  type RemoveResponse,
  WatchRequestSchema,
  type WatchResponse,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { InternalServer } from '../internal/server.ts';
import { KelletError } from '../platform/errors.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { type Appliers, RefusalError } from './applier.ts';
import { ChangeCoalescer, ChangeFeed, notifyChanged } from './changes.ts';
import { Dispatcher } from './dispatcher.ts';
import { ControlServer } from './server.ts';
import { listWorkingCopies } from './working-copies.ts';

const definition = grpcService(ControlService);
const secret = 'a control secret';

describe('control over gRPC', () => {
  let test: TestDatabase;
  let server: InternalServer;
  let client: Client;
  let applied: string[];
  let driven: string[];
  const logger = createLogger('silent');

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    const dispatcher = new Dispatcher(test.database);
    const profiles: Appliers['DeviceProfile'] = {
      async apply(meta, spec) {
        applied.push(`${meta.tenantId}/${meta.name} ${spec.type} ${meta.generation}`);
        if (spec.type === 'refused') throw new RefusalError('InvalidSpec', 'spec.type is invalid');
        if (spec.type === 'broken') throw new Error('password is hunter2');
        if (spec.type === 'unavailable') throw new KelletError('UNAVAILABLE', 'the database is unavailable');
        return { id: 'p', observed: { devices: 3 } };
      },
      async remove(meta, detach) {
        applied.push(`remove ${meta.tenantId}/${meta.name} ${detach}`);
        return meta.name === 'used' && !detach ? { reason: 'InUse', message: 'used' } : undefined;
      },
    };
    dispatcher.addApplier('DeviceProfile', profiles);
    const changes = new ChangeFeed(test.database, logger);
    const rolloutDriver = () => ({
      async advance(request: { rolloutId: string }) {
        driven.push(request.rolloutId);
        return { applied: true };
      },
    });
    server = new InternalServer(secret, logger);
    const workingCopies = (request: ListWorkingCopiesRequest, signal: AbortSignal) =>
      listWorkingCopies(test.database, request, signal);
    new ControlServer(server, { dispatcher, changes, workingCopies, rolloutDriver }, logger);
    const port = await server.listen('127.0.0.1', 0);
    client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
  });
  beforeEach(() => {
    applied = [];
    driven = [];
  });
  after(async () => {
    client.close();
    await server.close();
    await test.drop();
  });

  const metadataOf = (token: string | undefined): Metadata => {
    const metadata = new Metadata();
    if (token !== undefined) metadata.set('authorization', `Bearer ${token}`);
    return metadata;
  };
  const call = <Response>(name: string, request: object, token: string | undefined = secret): Promise<Response> =>
    new Promise((resolve, reject) => {
      const { path, requestSerialize, responseDeserialize } = definition[name]!;
      const done = (error: ServiceError | null, response?: unknown) =>
        error ? reject(new Error(`${error.code} ${error.details}`)) : resolve(response as Response);
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, request, metadataOf(token), done);
    });
  const meta = (overrides: MessageInitShape<typeof ObjectMetaSchema> = {}) => ({
    tenantId: 'acme',
    namespace: 'kellet-acme',
    name: 'pumps',
    generation: 2n,
    ...overrides,
  });
  const apply = (type: string, overrides: MessageInitShape<typeof ObjectMetaSchema> = {}, token?: string) =>
    call<ApplyResponse>(
      'Apply',
      create(ApplyRequestSchema, { meta: meta(overrides), kind: Kind.DEVICE_PROFILE, spec: { type } }),
      token,
    );
  const remove = (overrides: MessageInitShape<typeof ObjectMetaSchema>, detach = false) =>
    call<RemoveResponse>(
      'Remove',
      create(RemoveRequestSchema, { meta: meta(overrides), kind: Kind.DEVICE_PROFILE, detach }),
    );
  const message = (promise: Promise<unknown>) =>
    promise.then(
      () => 'fine',
      (error: Error) => error.message,
    );

  it('rejects calls without the secret', async () => {
    for (const token of ['', 'another', `${secret} `, secret.slice(1)]) {
      expect(await message(apply('pump', {}, token)), JSON.stringify(token)).to.equal(
        '16 the control secret is required',
      );
    }
    const none = call('Apply', create(ApplyRequestSchema), '');
    expect(await message(none)).to.match(/^16 /);
    expect(applied).to.deep.equal([]);
  });

  it('passes a manifest to the applier of its kind, and returns the observation', async () => {
    const response = await apply('pump');
    expect(applied).to.deep.equal(['acme/pumps pump 2']);
    expect(response.id).to.equal('p');
    expect(response.observed).to.have.property('case', 'deviceProfile');
    expect(response.observed.value).to.include({ devices: 3 });
    expect(response.refusal).to.equal(undefined);
  });

  it('returns refusals in the response, and other failures as errors', async () => {
    expect((await apply('refused')).refusal).to.include({
      reason: 'InvalidSpec',
      message: 'spec.type is invalid',
    });
    expect(await message(apply('unavailable'))).to.equal('14 the database is unavailable');
    expect(await message(apply('broken'))).to.equal('13 internal error');
    expect(await message(call('Apply', create(ApplyRequestSchema, { meta: meta() })))).to.match(/^3 /);
    const tenant = create(ApplyRequestSchema, { meta: meta(), kind: Kind.TENANT, spec: {} });
    expect(await message(call('Apply', tenant))).to.match(/^12 /);
  });

  it('refuses display names that no API call could have made', async () => {
    for (const displayName of ['a\0b', 'x'.repeat(254), '😀'.repeat(254)]) {
      expect((await apply('pump', { displayName })).refusal).to.include({ reason: 'InvalidSpec' });
    }
    expect(applied).to.deep.equal([]);
    for (const displayName of ['Pumpe Süd', '😀'.repeat(253)]) {
      expect((await apply('pump', { displayName })).id).to.equal('p');
    }
  });

  it('refuses resources of an unknown tenant or in a namespace that is not the tenant’s', async () => {
    for (const foreign of [{ tenantId: 'unknown' }, { namespace: 'elsewhere' }]) {
      expect((await apply('pump', foreign)).refusal?.reason).to.equal('TenantUnknown');
      expect((await remove(foreign, true)).refusal).to.equal(undefined);
    }
    expect(applied).to.deep.equal([]);
  });

  it('refuses the resource of a cancelled creation', async () => {
    const intentId = '0192f0e0-0000-7000-8000-000000000001';
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO resource_intents (tenant_id, intent_id, kind, namespace, name, state, deadline, settled_at)
         VALUES ('acme', $1, 'DeviceProfile', 'kellet-acme', 'pumps', 'cancelled', now(), now())`,
        [intentId],
      ),
    );
    expect((await apply('pump', { intentId })).refusal?.reason).to.equal('IntentCancelled');
    expect(applied).to.deep.equal([]);
    // An intent that is not in this database comes from another installation, such as a restored cluster.
    expect((await apply('pump', { intentId: '0192f0e0-0000-7000-8000-000000000002' })).refusal).to.equal(undefined);
    expect((await apply('pump', { intentId: 'written by hand' })).refusal).to.equal(undefined);
  });

  it('removes a working copy, unless it is in use', async () => {
    expect((await remove({})).refusal).to.equal(undefined);
    expect((await remove({ name: 'used' })).refusal).to.include({ reason: 'InUse' });
    expect((await remove({ name: 'used' }, true)).refusal).to.equal(undefined);
    expect(await message(call('Remove', create(RemoveRequestSchema, { meta: meta() })))).to.match(/^3 /);
  });

  it('passes decisions about rollouts to the driver', async () => {
    const request = create(AdvanceRolloutRequestSchema, { tenantId: 'acme', rolloutId: 'r' });
    expect(await call<AdvanceRolloutResponse>('AdvanceRollout', request)).to.include({ applied: true });
    expect(driven).to.deep.equal(['r']);
  });

  describe('watch', () => {
    const watch = (token = secret) => {
      const { path, requestSerialize, responseDeserialize } = definition['Watch']!;
      const stream: ClientReadableStream<WatchResponse> = client.makeServerStreamRequest<
        MessageShape<typeof WatchRequestSchema>,
        WatchResponse
      >(
        path,
        requestSerialize,
        responseDeserialize as (bytes: Buffer) => WatchResponse,
        create(WatchRequestSchema),
        metadataOf(token),
      );
      const seen: string[] = [];
      stream.on('data', ({ synced, kind, tenantId, namespace, name }: WatchResponse) =>
        seen.push(synced ? 'synced' : `${kind} ${tenantId}/${namespace}/${name}`),
      );
      const ended = new Promise<number>((resolve) => {
        stream.on('error', (error: ServiceError) => resolve(error.code));
        stream.on('end', () => resolve(0));
      });
      return { stream, seen, ended };
    };
    const changed = (name: string) =>
      test.database.tenant('acme', (tx) => notifyChanged(tx, 'OtaRollout', 'acme', 'kellet-acme', name));

    it('rejects calls without the secret', async () => {
      expect(await watch('another').ended).to.equal(16);
    });

    it('reports synced first and then each change, to every watcher', async () => {
      const [one, other] = [watch(), watch()];
      await eventually(() => one.seen.length > 0 && other.seen.length > 0);
      await changed('fast');
      await eventually(() => one.seen.length > 1 && other.seen.length > 1);
      const expected = ['synced', '5 acme/kellet-acme/fast'];
      expect(one.seen).to.deep.equal(expected);
      expect(other.seen).to.deep.equal(expected);
      one.stream.cancel();
      other.stream.cancel();
      expect(await one.ended).to.equal(1);
    });

    it('does not report changes that were rolled back', async () => {
      const { seen, stream, ended } = watch();
      await eventually(() => seen.length > 0);
      await test.database
        .tenant('acme', async (tx) => {
          await notifyChanged(tx, 'OtaRollout', 'acme', 'kellet-acme', 'undone');
          throw new Error('rolled back');
        })
        .catch(() => undefined);
      await changed('done');
      await eventually(() => seen.length > 1);
      expect(seen).to.deep.equal(['synced', '5 acme/kellet-acme/done']);
      stream.cancel();
      await ended;
    });

    it('coalesces frequent changes into one per resource', async () => {
      const { seen, stream, ended } = watch();
      await eventually(() => seen.length > 0);
      const coalescer = new ChangeCoalescer(test.database, logger);
      const change = { kind: 'ProvisioningTemplate', tenantId: 'acme', namespace: 'kellet-acme' } as const;
      for (let count = 0; count < 1000; count += 1) coalescer.mark({ ...change, name: count % 2 ? 'odd' : 'even' });
      await coalescer.close();
      await changed('last');
      await eventually(() => seen.at(-1) === '5 acme/kellet-acme/last');
      expect(seen).to.deep.equal([
        'synced',
        '3 acme/kellet-acme/even',
        '3 acme/kellet-acme/odd',
        '5 acme/kellet-acme/last',
      ]);
      stream.cancel();
      await ended;
    });

    it('ends when the listener is lost, so that the operator applies everything again', async () => {
      const { seen, ended } = watch();
      await eventually(() => seen.length > 0);
      await test.database.system((tx) =>
        tx.query(
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'kellet-listener'`,
        ),
      );
      expect(await ended).to.equal(14);
      await eventually(async () => {
        const again = watch();
        await Promise.race([again.ended, eventually(() => again.seen.length > 0)]);
        again.stream.cancel();
        return again.seen.length > 0;
      });
    });
  });
});
