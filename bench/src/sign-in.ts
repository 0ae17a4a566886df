// Users of the benchmarks' tenant.
import pg from 'pg';
import { hashPassword } from '../../apiserver/src/auth/accounts/passwords.ts';
import { newId } from '../../apiserver/src/platform/ids.ts';
import type { Environment } from './environment.ts';

/** Makes users with a role, and returns an access token of each. */
export async function signIn(
  { databaseUrl, tenantId, rest }: Environment,
  role: 'tenant_admin' | 'viewer',
  users: number,
): Promise<string[]> {
  const password = newId();
  const passwordHash = await hashPassword(password);
  const emails = Array.from({ length: users }, () => `${newId()}@kellet.test`);
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query(
      `INSERT INTO users (user_id, tenant_id, email, name, role, password_hash, disabled)
       SELECT gen_random_uuid(), $1, email, 'user', $4, $2, false FROM unnest($3::text[]) AS email`,
      [tenantId, passwordHash, emails, role],
    );
  } finally {
    await client.end();
  }
  const tokens: string[] = [];
  for (const email of emails) {
    const response = await fetch(`http://${rest.host}:${rest.port}/api/v1/auth/login`, {
      ...{ method: 'POST', headers: { 'content-type': 'application/json' } },
      body: JSON.stringify({ tenant_id: tenantId, email, password }),
    });
    const { access_token: token } = (await response.json()) as { access_token: string };
    if (!token) throw new Error(`sign-in was refused: ${response.status}`);
    tokens.push(token);
  }
  return tokens;
}
