// login-storm: sign-ins per second while many users sign in at once, compared with argon2 alone, and what the storm costs the
// other requests: the latency of an ordinary authenticated GET, alone and beside it.
import pg from 'pg';
import { hashPassword, verifyPassword } from '../../../apiserver/src/auth/accounts/passwords.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import type { Benchmark } from '../harness.ts';
import { getRequest, HttpLoad, type Load, postRequest } from './http-load.ts';

const users = 64;
const password = 'correct horse battery staple';
const seconds = 4;

/** The benchmark. */
export const loginStorm: Benchmark = {
  name: 'login-storm',
  unit: 'sign-ins/s',
  baseline: 'argon2 alone in such a thread, one hash at a time',
  rounds: 3,
  prepare: async () => {
    const generator = new HttpLoad();
    const storm = new HttpLoad();
    const settings = { KELLET_TRUSTED_PROXIES: '127.0.0.1' };
    const environment = await startEnvironment((line) => console.error(line), 100, { settings });
    const { rest, apiKey, deviceIds } = environment;
    const passwordHash = await hashPassword(password);
    const emails = await addUsers(environment, passwordHash);
    const reads: Load = {
      ...rest,
      requests: deviceIds.map((id) => getRequest(`/api/v1/devices/${id}`, { 'X-API-Key': apiKey })),
      ...{ expected: '"device_id"', connections: 32, seconds, perSecond: 200 },
    };
    // Each user has an address of its own: those of one address wait in a line of their own.
    const signIns: Load = {
      ...rest,
      requests: emails.map((email, index) =>
        postRequest(
          '/api/v1/auth/login',
          { 'X-Forwarded-For': `192.0.2.${index + 1}` },
          JSON.stringify({ email, password }),
        ),
      ),
      ...{ expected: '"access_token"', connections: users, seconds },
    };
    let remarks = {};
    return {
      baseline: async () => {
        const until = performance.now() + seconds * 1000;
        let count = 0;
        for (; performance.now() < until; count += 1) await verifyPassword([passwordHash], password, '');
        return count / seconds;
      },
      ours: async () => {
        const alone = await generator.run(reads);
        const [beside, signedIn] = await Promise.all([generator.run(reads), storm.run(signIns)]);
        remarks = {
          ...{ 'a GET alone p50 ms': alone.p50, 'p99 ms': alone.p99 },
          ...{ 'beside the storm p50 ms': beside.p50, 'beside it p99 ms': beside.p99 },
          ...{ 'p99 beside it over alone': beside.p99 / alone.p99, 'a sign-in p50 ms': signedIn.p50 },
        };
        return signedIn.perSecond;
      },
      remarks: () => remarks,
      close: async () => {
        generator.close();
        storm.close();
        await environment.close();
      },
    };
  },
};

async function addUsers({ databaseUrl, tenantId }: Environment, passwordHash: string): Promise<string[]> {
  const emails = Array.from({ length: users }, (_, index) => `user-${index}@bench.test`);
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query(
      `INSERT INTO users (user_id, tenant_id, email, name, role, password_hash)
       SELECT user_id, $1, email, '', 'viewer', $4 FROM unnest($2::uuid[], $3::text[]) AS given (user_id, email)`,
      [tenantId, emails.map(newId), emails, passwordHash],
    );
  } finally {
    await client.end();
  }
  return emails;
}
