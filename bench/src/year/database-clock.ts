// Makes the clock of a database run faster, for `make day`.
import pg from 'pg';

/** The functions of PostgreSQL that tell the time. */
const functions = ['now', 'clock_timestamp', 'statement_timestamp'] as const;

/**
 * Puts functions of its own before those of PostgreSQL in an empty database, so that statements, defaults and functions made from now
 * on use them. They tell the right time until `hurry`.
 */
export async function replaceClock(superuserUrl: string): Promise<void> {
  await asSuperuser(superuserUrl, async (client) => {
    for (const name of functions) await client.query(functionOf(name, `pg_catalog.${name}()`));
    const { rows } = await client.query<{ name: string }>('SELECT current_database() AS name');
    await client.query(`ALTER DATABASE ${pg.escapeIdentifier(rows[0]!.name)} SET search_path = public, pg_catalog`);
  });
}

/** From `epoch` (milliseconds since 1970) on, time passes `speed` times as fast. */
export async function hurry(superuserUrl: string, epoch: number, speed: number): Promise<void> {
  const start = `to_timestamp(${epoch / 1000})`;
  await asSuperuser(superuserUrl, async (client) => {
    for (const name of functions)
      await client.query(functionOf(name, `${start} + (pg_catalog.${name}() - ${start}) * ${speed}`));
  });
}

const functionOf = (name: string, value: string): string =>
  `CREATE OR REPLACE FUNCTION public.${name}() RETURNS timestamptz LANGUAGE sql ${name === 'clock_timestamp' ? 'VOLATILE' : 'STABLE'} PARALLEL SAFE AS $$ SELECT ${value} $$`;

async function asSuperuser(superuserUrl: string, work: (client: pg.Client) => Promise<void>): Promise<void> {
  const client = new pg.Client({ connectionString: superuserUrl });
  await client.connect();
  try {
    await work(client);
  } finally {
    await client.end();
  }
}
