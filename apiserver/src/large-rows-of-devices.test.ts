// Rows of a mebibyte or two for each of many devices: commands of the operator of an installation hold few of them in memory.
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { Agent, request } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { mintKey } from './auth/credentials/api-key-format.ts';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { newId } from './platform/ids.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { TestProcesses } from './testing/test-process.ts';

const tenant = 'acme';
const devices = Array.from({ length: 350 }, () => newId());
/** The first device has so many points of one time. */
const pointsAtOnce = 350;
/** Texts of one value repeated, which take 30 KB in the database. */
const values = Object.fromEntries(Array.from({ length: 250 }, (_, n) => [`text${n}`, 'a'.repeat(4000)]));
/** Less than the points take, and more than the process does. */
const heap = { NODE_OPTIONS: '--max-old-space-size=320' };

describe('large rows of many devices', function () {
  this.timeout(180_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  let key: string;
  let folder: string;
  const agent = new Agent({ keepAlive: true, maxSockets: 4 });

  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-large-rows-'));
    processes = await TestProcesses.create(test.url);
    await insertTenant(test.database, tenant);
    const minted = mintKey();
    key = minted.key;
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
         SELECT $1, id, 'device ' || id, id FROM unnest($2::uuid[]) AS id`,
        [tenant, devices],
      );
      await tx.query(
        `INSERT INTO api_keys (key_id, tenant_id, key_hash, prefix, last4, scopes) VALUES ($1, $2, $3, $4, $5, $6)`,
        [newId(), tenant, minted.hash, minted.prefix, minted.last4, ['telemetry:write']],
      );
    });
    const { ports, child, ended } = await processes.start({});
    const ids = [...devices, ...Array.from({ length: pointsAtOnce }, () => devices[0]!)];
    let next = 0;
    const sender = async (): Promise<void> => {
      while (next < ids.length) await send(ports.restPort, ids.slice(next, next + 3), (next += 3));
    };
    await Promise.all([sender(), sender()]);
    child.kill('SIGTERM');
    expect((await ended).end).to.equal(0);
  });
  after(async () => {
    agent.destroy();
    await processes.kill();
    await processes.remove();
    await rm(folder, { recursive: true, force: true });
    await test.drop();
  });

  /** Sends a point of each of these devices, all of which must be acknowledged. */
  async function send(port: number, ids: readonly string[], number: number): Promise<void> {
    const different = { timestamp: '2026-09-01T00:00:00Z', string_values: values, numeric_values: { number } };
    const points = ids.map((id) => ({ device_id: id, ...different }));
    const body = JSON.stringify({ points });
    const headers = { 'x-api-key': key, 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
    const call = request({ port, host: '127.0.0.1', method: 'POST', path: '/api/v1/telemetry', agent, headers });
    call.end(body);
    const [response] = (await once(call, 'response')) as [NodeJS.ReadableStream & { statusCode: number }];
    let text = '';
    for await (const chunk of response) text += String(chunk);
    expect(response.statusCode, text).to.equal(200);
  }

  it('do not end a check, which compares the latest values with their points', async () => {
    await processes.run(['fsck'], heap);
  });

  it('do not end the export of the tenant', async () => {
    await processes.run(['tenant', 'export', tenant, '--to', path.join(folder, 'tenant'), '--serving'], heap);
  });
});
