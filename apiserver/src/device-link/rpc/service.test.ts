// Commands to devices through both public ports, with a real database.
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata } from '@grpc/grpc-js';
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import {
  DeviceLinkService,
  ListPendingRpcsRequestSchema,
  type ListPendingRpcsResponse,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { eventually, insertTenant } from '../../auth/test-fixtures.ts';
import { startTestGateway, type TestGateway } from '../../gateway/test-gateway.ts';
import { systemClock } from '../../platform/clock.ts';
import { grpcService } from '../../platform/grpc-service.ts';
import { newId } from '../../platform/ids.ts';
import type { Platform } from '../../platform/module.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/test-database.ts';
import { createProfileReader } from '../provisioning/profiles.ts';
import { enqueueCommand } from './commands.ts';
import { createRpc } from './service.ts';

const tenantId = 'acme';

describe('commands to devices', () => {
  let test: TestDatabase;
  let server: TestGateway;
  let client: Client;

  before(async () => {
    test = await createTestDatabase();
    const { database } = test;
    await insertTenant(database, tenantId);
    const platform = { database, clock: systemClock } as Platform;
    const rpc = createRpc(platform, createProfileReader(database), () => undefined);
    server = await startTestGateway((registry) => rpc.register(registry), { testDatabase: test });
    client = new Client(server.grpc, credentials.createInsecure());
  });
  after(async () => {
    client.close();
    await server.stop();
    await test.drop();
  });

  let devices = 0;
  async function device(): Promise<string> {
    const deviceId = newId();
    devices += 1;
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'pump', 'pump-' || $3::int)`,
        [tenantId, deviceId, devices],
      ),
    );
    server.tokens.set(deviceId, { valid: true, kind: Kind.device, tenantId, deviceId });
    return deviceId;
  }

  interface Poll {
    /** How many commands it was answered with; undefined: it waits. */
    commands: number | undefined;
    readonly leave: () => void;
  }
  function pollByRest(deviceId: string): Poll {
    const leaving = new AbortController();
    const poll: Poll = { commands: undefined, leave: () => leaving.abort() };
    const path = `/api/v1/devices/${deviceId}/rpc/pending?wait_seconds=60`;
    fetch(`${server.rest}${path}`, { headers: { 'x-api-key': deviceId }, signal: leaving.signal })
      .then((response) => response.json() as Promise<{ commands: unknown[] }>)
      .then(
        ({ commands }) => (poll.commands = commands.length),
        () => undefined,
      );
    return poll;
  }
  function pollByGrpc(deviceId: string): Poll {
    const { path, requestSerialize, responseDeserialize } = grpcService(DeviceLinkService)['ListPendingRpcs']!;
    const request = create(ListPendingRpcsRequestSchema, { deviceId, waitSeconds: 60 });
    const metadata = new Metadata();
    metadata.set('x-api-key', deviceId);
    const poll: Poll = { commands: undefined, leave: () => call.cancel() };
    const call = client.makeUnaryRequest(
      path,
      requestSerialize,
      responseDeserialize,
      request,
      metadata,
      {},
      (_, answer) => {
        poll.commands = (answer as ListPendingRpcsResponse | undefined)?.commands.length;
      },
    );
    return poll;
  }

  it('are waited for by four polls of a device at the most, and the last ones wait', async () => {
    const [busy, calm] = [await device(), await device()];
    const other = pollByGrpc(calm);
    const polls: Poll[] = [];
    for (let count = 0; count < 60; count += 1) polls.push((count % 2 === 0 ? pollByRest : pollByGrpc)(busy));
    const waiting = () => polls.filter(({ commands }) => commands === undefined);
    const answered = () => polls.filter(({ commands }) => commands !== undefined);
    await eventually(() => waiting().length === 4);
    // Both ports count as one: who comes by either makes somebody leave who came by any.
    const last = [pollByGrpc(busy), pollByRest(busy), pollByGrpc(busy), pollByRest(busy)];
    await eventually(() => waiting().length === 0);
    expect(answered().map(({ commands }) => commands)).to.deep.equal(polls.map(() => 0));
    expect([other, ...last].map(({ commands }) => commands)).to.deep.equal(Array(5).fill(undefined));

    const command = { tenantId, deviceId: busy, method: 'reboot', params: {}, persistent: false, expiresInSeconds: 60 };
    await test.database.tenant(tenantId, (tx) => enqueueCommand(tx, command));
    await eventually(() => last.some(({ commands }) => commands === 1));
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(last.filter(({ commands }) => commands === undefined)).to.have.length(3);
    expect(other.commands).to.equal(undefined);
    for (const poll of [other, ...last]) poll.leave();
  });
});
