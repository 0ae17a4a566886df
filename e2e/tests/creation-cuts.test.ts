// Cuts the creation of a rollout on the running system, at each of its writes: the caller's connection, the sessions of the
// database, the database and the data plane. Afterwards the caller was told that the rollout exists, or it does not exist and
// nothing is scheduled. creation-faults.test.ts does the same with faults of the network, which nothing here can time.
import { expect } from 'chai';
import pg from 'pg';
import { followEvents } from '../../dev/clients/broker-events.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl, makePackage, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

const deviceCount = 20;
const canary = deviceCount / 2;

/** The writes of a creation in their order, as events of triggers. A key of an advisory lock holds a creation at each. */
const writes = {
  'the intent': 'BEFORE INSERT ON resource_intents FOR EACH ROW',
  'the version of the resource': 'BEFORE INSERT ON applied_versions FOR EACH ROW',
  'the rollout': 'BEFORE INSERT ON ota_rollouts FOR EACH ROW',
  'the cohort': 'BEFORE INSERT ON ota_rollout_cohort FOR EACH STATEMENT',
  'the assignments': 'BEFORE INSERT ON ota_assignments FOR EACH STATEMENT',
  'the devices': 'BEFORE INSERT ON ota_rollout_devices FOR EACH STATEMENT',
  'the commands': 'BEFORE INSERT ON device_commands FOR EACH STATEMENT',
  'the end of the intent': `BEFORE UPDATE ON resource_intents FOR EACH ROW WHEN (NEW.state = 'active')`,
  'the COMMIT': 'AFTER INSERT ON ota_rollouts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW',
} as const;
type Write = keyof typeof writes;
const allWrites = Object.keys(writes) as Write[];
// What is killed takes seconds to return.
const someWrites: readonly Write[] = ['the intent', 'the version of the resource', 'the commands', 'the COMMIT'];

const keyOf = (write: Write): number => 77_000 + allWrites.indexOf(write);
const triggerOf = (write: Write): string => `e2e_hold_${allWrites.indexOf(write)}`;

const tableOf = (write: Write): string => / ON (\w+) /.exec(writes[write])![1]!;

interface Scene {
  /** Closes the caller's connection. */
  readonly leave: () => void;
  /** The session that holds the creation. */
  readonly holder: pg.Client;
}

/** What is cut, where, and how. */
const cuts: readonly (readonly [string, readonly Write[], (scene: Scene) => unknown])[] = [
  ['the caller’s connection', allWrites, ({ leave }) => leave()],
  [
    'all sessions of the database',
    allWrites,
    ({ holder }) =>
      holder.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`,
      ),
  ],
  ['the database', someWrites, () => stack().kill('postgres')],
  ['the data plane', someWrites, () => stack().kill('apiserver')],
];

async function connected(): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: stack().info.databaseUrl });
  client.on('error', () => undefined);
  await client.connect();
  return client;
}

async function withDatabase<T>(work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = await connected();
  return work(client).finally(() => client.end());
}

describe('the creation of a rollout', function () {
  this.timeout(300_000);
  /** Status of the response by the name of the rollout; undefined if there was no response. */
  const responses = new Map<string, number | undefined>();
  const profiles = new Map<string, string>();
  let packageId: string;

  before(async () => {
    const made = await makePackage(await admin(), { version: '1.0.0' });
    packageId = made.package_id;
    await withDatabase(async (client) => {
      await client.query(
        `CREATE FUNCTION e2e_hold() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_advisory_xact_lock_shared(TG_ARGV[0]::bigint); RETURN NEW; END $$`,
      );
      for (const write of allWrites) {
        const constraint = write === 'the COMMIT' ? 'CONSTRAINT' : '';
        await client.query(
          `CREATE ${constraint} TRIGGER ${triggerOf(write)} ${writes[write]} EXECUTE FUNCTION e2e_hold(${keyOf(write)})`,
        );
      }
    });
  });
  after(() =>
    withDatabase(async (client) => {
      // One by one: a statement that locks several tables could deadlock with the data plane.
      for (const write of allWrites) await client.query(`DROP TRIGGER ${triggerOf(write)} ON ${tableOf(write)}`);
      await client.query('DROP FUNCTION e2e_hold()');
    }),
  );

  /** Creates a rollout, and cuts something while it is held at a write. */
  async function cutAt(name: string, write: Write, cut: (scene: Scene) => unknown): Promise<void> {
    const rest = await admin();
    const { profile_id: target } = await makeProfile(rest);
    profiles.set(name, target);
    const holder = await connected();
    try {
      await holder.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT $1, gen_random_uuid(), 'd', $2 || n, $2::uuid FROM generate_series(1, $3::int4) AS n`,
        [stack().info.tenant, target, deviceCount],
      );
      await holder.query('SELECT pg_advisory_lock($1)', [keyOf(write)]);
      const caller = new AbortController();
      const body = { package_id: packageId, target_profile_id: target, canary_percent: 50, name };
      const response = rest.send('POST', '/api/v1/ota/rollouts', { body, signal: caller.signal }).then(
        ({ status }) => status,
        () => undefined,
      );
      const isHeld = async () =>
        (
          await holder.query(
            `SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND objsubid = 1 AND NOT granted
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
            [keyOf(write)],
          )
        ).rowCount !== 0;
      await waitUntil(isHeld, { what: `a creation held at ${write}`, intervalMilliseconds: 10 });
      await cut({ leave: () => caller.abort(), holder });
      await holder.query('SELECT pg_advisory_unlock_all()').catch(() => undefined);
      responses.set(name, await response);
    } finally {
      await holder.end().catch(() => undefined);
    }
    await stack().waitReady('postgres');
    await stack().waitReady('apiserver');
  }

  /** What is wrong with the rollout of this name. */
  async function problemsOf(name: string, found: Found): Promise<string[]> {
    const parts = await withDatabase(async (client) => {
      const devicesOf = (table: string) =>
        `(SELECT count(*)::int4 FROM ${table} JOIN devices USING (tenant_id, device_id) WHERE profile_id = $1) AS ${table}`;
      const { rows } = await client.query<Record<string, number>>(
        `SELECT ${['ota_rollout_devices', 'ota_assignments', 'device_commands', 'ota_rollout_cohort'].map(devicesOf).join(', ')},
           (SELECT count(*)::int4 FROM resource_intents WHERE name = $2 AND state = 'pending') AS pending`,
        [profiles.get(name), name],
      );
      return rows[0]!;
    });
    const status = responses.get(name);
    const rollouts = found.rollouts.filter((rollout) => rollout.name === name);
    const made = rollouts.length;
    const scheduled = made * canary;
    const expected = {
      ota_rollout_devices: scheduled,
      ota_assignments: scheduled,
      device_commands: scheduled,
      ota_rollout_cohort: made * deviceCount,
      pending: 0,
    };
    const problems: string[] = [];
    if (JSON.stringify(parts) !== JSON.stringify(expected)) problems.push(`${made} rollouts, ${JSON.stringify(parts)}`);
    if (found.resources.includes(name) !== (made === 1)) problems.push(`${made} rollouts, but not as many resources`);
    if (rollouts.some(({ counts }) => counts.scheduled !== canary)) problems.push('not as many scheduled as covered');
    if (found.started.filter((started) => started === name).length !== made) problems.push(`not ${made} events`);
    // DEADLINE_EXCEEDED says that the outcome is unknown.
    const told = status === undefined || status === 504 ? made : { 200: 1, 503: 0 }[status];
    if (told !== made) problems.push(`${made} rollouts, but the response was ${status}`);
    return problems.map((problem) => `${name}: ${problem}`);
  }

  interface Found {
    readonly rollouts: readonly Rollout[];
    readonly resources: readonly string[];
    /** Names in the events of rollouts that have started. */
    readonly started: readonly string[];
  }

  for (const [what, places, cut] of cuts) {
    it(`leaves it complete or absent, and is answered truly, with ${what} cut at each write`, async () => {
      const base = unique('cut');
      const names = places.map((_, index) => `${base}-${index}`);
      const events = await followEvents(stack().info.natsUrl, 'profile.ota.rollout.started.>');
      try {
        for (const [index, write] of places.entries()) await cutAt(names[index]!, write, cut);
        let wrong: string[] = [];
        const isRight = async (): Promise<boolean> => {
          const found: Found = {
            rollouts: await (await admin()).list<Rollout>('/api/v1/ota/rollouts', 'rollouts'),
            resources: (
              await (await kubectl()).run(['get', 'otarollouts', '-o', 'jsonpath={.items[*].metadata.name}'])
            ).split(' '),
            started: events.received.map(({ data }) => (data as { data: { name: string } }).data.name),
          };
          wrong = (await Promise.all(names.map((name) => problemsOf(name, found)))).flat();
          return wrong.length === 0;
        };
        await waitUntil(isRight, {
          what: 'the end of all',
          timeoutMilliseconds: 60_000,
          intervalMilliseconds: 500,
        }).catch((error: unknown) => {
          throw new Error(wrong.join('\n'), { cause: error });
        });
        const statuses = names.map((name) => responses.get(name));
        // Each of these faults is of a kind that must have ended some creation.
        expect(statuses.filter((status) => status !== 200)).not.to.have.length(0);
        for (const { rollout_id, name } of await (await admin()).list<Rollout>('/api/v1/ota/rollouts', 'rollouts')) {
          if (names.includes(name)) await (await admin()).post(`/api/v1/ota/rollouts/${rollout_id}/cancel`);
        }
      } finally {
        await events.close();
      }
    });
  }
});
