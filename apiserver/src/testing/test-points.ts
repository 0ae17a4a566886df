// For tests: devices, a key with which their points are sent, and requests with points.
import { once } from 'node:events';
import { type Agent, request } from 'node:http';
import { expect } from 'chai';
import { mintKey } from '../auth/credentials/api-key-format.ts';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import type { Database } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';

/** Adds a tenant with these devices. Returns a key of it with the scope telemetry:write. */
export async function insertDevicesAndKey(
  database: Database,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<string> {
  await insertTenant(database, tenantId);
  const { key, hash, prefix, last4 } = mintKey();
  await database.system(async (tx) => {
    await tx.query(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
       SELECT $1, id, id::text, id::text FROM unnest($2::uuid[]) AS id`,
      [tenantId, deviceIds],
    );
    await tx.query(
      `INSERT INTO api_keys (key_id, tenant_id, key_hash, prefix, last4, scopes) VALUES ($1, $2, $3, $4, $5, $6)`,
      [newId(), tenantId, hash, prefix, last4, ['telemetry:write']],
    );
  });
  return key;
}

/** Sends points in one request, which must succeed. Returns how many were accepted. */
export async function sendPoints(
  { port, agent, key }: { readonly port: number; readonly agent: Agent; readonly key: string },
  points: readonly object[],
): Promise<number> {
  const body = JSON.stringify({ points });
  const headers = { 'x-api-key': key, 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
  const sent = request({ port, host: '127.0.0.1', method: 'POST', path: '/api/v1/telemetry', agent, headers });
  sent.end(body);
  const [response] = (await once(sent, 'response')) as [NodeJS.ReadableStream & { statusCode: number }];
  let text = '';
  for await (const chunk of response) text += String(chunk);
  expect(response.statusCode, text).to.equal(200);
  return (JSON.parse(text) as { accepted: number }).accepted;
}
