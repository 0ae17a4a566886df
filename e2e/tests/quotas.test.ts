// The quotas of a tenant, on every way to what they limit.
import { create, type Message } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import type { Schema } from '@kellet/client';
import { type IngestStreamResponse, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import mqtt from 'mqtt';
import { grpcService } from '../../apiserver/src/platform/grpc/grpc-service.ts';
import { Rest, type RestResponse } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { anonymous, makeArtifact, makeProfile, makeTemplate, platformAdmin, unique } from '../testing/fixtures.ts';

interface ErrorBody {
  code: string;
  message: string;
}

const message = 'points_per_day of the tenant is used up until midnight UTC';

describe('quotas', function () {
  this.timeout(60_000);
  const tenantId = unique('quota');
  let platform: Rest;
  let rest: Rest;
  let device: { deviceId: string; rest: Rest; apiKey: string };
  let second = 0;

  before(async () => {
    platform = await platformAdmin();
    const account = { email: `admin@${tenantId}.test`, password: 'correct horse battery' };
    await platform.post('/api/v1/tenants', {
      ...{ tenant_id: tenantId, name: 'Limited', admin_email: account.email, admin_password: account.password },
      quotas: { devices: 2, points_per_day: 6, storage_bytes: 200_000 },
    });
    rest = await Rest.login(stack().info.rest, account);
    const made = await rest.client.post('/api/v1/devices', { body: { hardware_id: unique('hardware') } });
    const apiKey = made.api_key;
    device = { deviceId: made.device!.device_id, apiKey, rest: new Rest(rest.base, apiKey) };
  });
  after(() => platform.delete(`/api/v1/tenants/${tenantId}`));

  const point = () => ({
    device_id: device.deviceId,
    timestamp: new Date(Date.now() - 3_600_000 + (second += 1000)).toISOString(),
    numeric_values: { level: second },
  });
  const send = (points: object[]): Promise<RestResponse<ErrorBody & Schema<'IngestResponse'>>> =>
    device.rest.send('POST', '/api/v1/telemetry', { body: { points } });
  const expectUsedUp = ({ status, body, headers }: RestResponse<ErrorBody>) => {
    expect({ status, code: body.code, message: body.message }).to.deep.equal({
      ...{ status: 429, code: 'RESOURCE_EXHAUSTED', message },
    });
    const untilMidnight = 86_400 - ((Date.now() / 1000) % 86_400);
    expect(Math.abs(Number(headers.get('retry-after')) - untilMidnight)).to.be.below(60);
  };

  it('of points hold over REST, gRPC and MQTT, and show in the usage', async () => {
    expect((await send([point()])).body).to.include({ accepted: 1 });
    // A stream gets what is left, then the error; what it has acknowledged is stored.
    const client = new Client(stack().info.grpc, credentials.createInsecure());
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${device.apiKey}`);
    const { path, requestSerialize, responseDeserialize } = grpcService(TelemetryService)['IngestStream']!;
    const decode = responseDeserialize as (bytes: Buffer) => Message;
    const stream = client.makeBidiStreamRequest<Message, Message>(path, requestSerialize, decode, metadata);
    const acknowledged: number[] = [];
    const failure = new Promise<ServiceError>((resolve) => stream.on('error', (error: ServiceError) => resolve(error)));
    stream.on('data', ({ sequence }: Message & IngestStreamResponse) => void acknowledged.push(sequence));
    for (let sequence = 1; sequence <= 4; sequence += 1) {
      const { timestamp, numeric_values: numericValues } = point();
      const points = [{ deviceId: device.deviceId, timestamp, numericValues }];
      stream.write(create(TelemetryService.method.ingestStream.input, { sequence, points }));
    }
    await waitUntil(() => acknowledged.length === 4, { what: 'acknowledgements', timeoutMilliseconds: 10_000 });
    const partly = await send([point(), point()]);
    expect(partly.body).to.include({ accepted: 1, rejected: 1 });
    expect(partly.body.errors[0]).to.include({ index: 1, code: 'RESOURCE_EXHAUSTED', message });
    const refusal = await waitUntil(
      async () => {
        const response = await send([point()]);
        return response.status === 429 ? response : undefined;
      },
      { what: 'a refusal', timeoutMilliseconds: 5000 },
    );
    expectUsedUp(refusal);
    const { timestamp, numeric_values: numericValues } = point();
    const points = [{ deviceId: device.deviceId, timestamp, numericValues }];
    stream.write(create(TelemetryService.method.ingestStream.input, { sequence: 5, points }));
    const { code, details, metadata: trailers } = await failure;
    expect({ code, details }).to.deep.equal({ code: 8, details: message });
    expect(Number(trailers.get('retry-after')[0])).to.be.above(0);
    expect(acknowledged).to.deep.equal([1, 2, 3, 4]);
    client.close();

    const connection = await mqtt.connectAsync(stack().info.mqtt, {
      ...{ username: device.deviceId, password: device.apiKey, protocolVersion: 5, reconnectPeriod: 0 },
    });
    const { device_id: _own, ...rest5 } = point();
    const refused = await connection.publishAsync('kellet/v1/telemetry', JSON.stringify(rest5), { qos: 1 }).then(
      () => undefined,
      (error: { code?: number }) => error.code,
    );
    expect(refused).to.equal(0x97);
    await connection.endAsync();

    const history = await rest.get<{ points: object[] }>(`/api/v1/telemetry/${device.deviceId}`);
    expect(history.points).to.have.length(6);
    // What was measured when the tenant was created may still be shown.
    const usage = await waitUntil(
      async () => {
        const { usage } = await platform.get<Schema<'Tenant'>>(`/api/v1/tenants/${tenantId}`);
        return usage!.points_today === 6 ? usage : undefined;
      },
      { what: 'the usage', timeoutMilliseconds: 10_000 },
    );
    expect(usage).to.include({ devices: 1 }).and.have.property('points_refused_today');
    await platform.patch(`/api/v1/tenants/${tenantId}`, {
      quotas: { devices: 2, points_per_day: 8, storage_bytes: 200_000 },
    });
    await waitUntil(async () => (await send([point()])).status === 200, {
      ...{ what: 'the raised quota', timeoutMilliseconds: 5000 },
    });
  });

  it('of devices hold for creation, import, claims and gateways', async () => {
    const profile = await waitUntil(() => makeProfile(rest).catch(() => undefined), {
      ...{ what: 'the namespace of the tenant', timeoutMilliseconds: 20_000 },
    });
    const { provision_key } = await makeTemplate(rest, profile.profile_id);
    const gateway = await rest.client.post('/api/v1/devices', { body: { hardware_id: unique('gateway') } });
    const own = new Rest(rest.base, gateway.api_key);
    const ways: [string, Promise<RestResponse<ErrorBody>>][] = [
      ['creation', rest.send('POST', '/api/v1/devices', { body: { hardware_id: unique('more') } })],
      [
        'a claim',
        anonymous().send('POST', '/api/v1/provision', {
          body: { provision_key, hardware_id: unique('more'), device_name: 'more' },
        }),
      ],
      [
        'a gateway',
        own.send('POST', `/api/v1/gateway/${gateway.device!.device_id}/connect`, {
          body: { device_name: 'child', hardware_id: unique('child') },
        }),
      ],
    ];
    for (const [way, response] of ways) {
      const { status, body } = await response;
      expect({ way, status, code: body.code }).to.deep.equal({ way, status: 429, code: 'RESOURCE_EXHAUSTED' });
    }
    const imported = await rest.send<string>('POST', '/api/v1/devices/import', {
      body: `hardware_id\n${unique('row')}\n`,
      headers: { 'content-type': 'text/csv' },
    });
    expect(String(imported.body)).to.contain('RESOURCE_EXHAUSTED').and.contain('"created":0');
    await rest.delete(`/api/v1/devices/${gateway.device!.device_id}`);
    await rest.client.post('/api/v1/devices', { body: { hardware_id: unique('again') } });
  });

  it('of storage hold for artifacts', async () => {
    const artifact = await makeArtifact(150_000);
    const make = (name: string) =>
      rest.send<ErrorBody>('POST', '/api/v1/ota/packages', {
        body: { name, type: 'fw', version: '1.0.0', artifact_uri: artifact.uri, sha256: artifact.sha256 },
      });
    expect((await make(unique('first'))).status).to.equal(200);
    const large = await makeArtifact(160_000);
    const refused = await rest.send<ErrorBody>('POST', '/api/v1/ota/packages', {
      body: { name: unique('second'), type: 'fw', version: '1.0.0', artifact_uri: large.uri, sha256: large.sha256 },
    });
    expect({ status: refused.status, code: refused.body.code }).to.deep.equal({
      ...{ status: 429, code: 'RESOURCE_EXHAUSTED' },
    });
  });
});
