// Interrupts a creation through the API at every possible point. Once everything has settled, a successful caller must
// find the resource exactly once and consistently in the API, the database and Kubernetes; after UNAVAILABLE there must
// be nothing.
import { randomUUID } from 'node:crypto';
import { create, type DescMessage, type DescMethodUnary, type MessageInitShape } from '@bufbuild/protobuf';
import { apiVersion, intentAnnotation, type Kind } from '@kellet/crds';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb.ts';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb.ts';
import { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { expect } from 'chai';
import pg from 'pg';
import { createDevice } from '../../apiserver/src/device-registry/devices/devices.ts';
import { sleep } from '../../apiserver/src/platform/clock.ts';
import { Database } from '../../apiserver/src/platform/database/database.ts';
import { KelletError } from '../../apiserver/src/platform/errors.ts';
import { namedId, newId } from '../../apiserver/src/platform/ids.ts';
import { KubernetesApi } from '../../apiserver/src/platform/kubernetes/kubernetes.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import { internalContext, publicCaller, type ServiceRegistry } from '../../apiserver/src/platform/rpc.ts';
import type { TestDatabase } from '../../apiserver/src/platform/testing/test-database.ts';
import { resourceName } from '../../apiserver/src/resources/resource-names.ts';
import type { ResourceWriter } from '../../apiserver/src/resources/resource-writer.ts';
import { FaultProxy } from '../testing/fault-proxy.ts';
import { type FaultPoint, PostgresProxy, type StatementFault } from '../testing/postgres-proxy.ts';
import { assembleServices } from '../testing/services.ts';
import { createTestTenant, type TestTenant } from '../testing/tenant.ts';

const tenantId = 'faults';
const logger = createLogger('silent');
/** Deadline of a creation in these tests, in milliseconds. */
const deadlineMilliseconds = 1200;
const settleMilliseconds = 3000;
const deviceCount = 5;

/** Result of a creation: the response or the error code. */
type Outcome = { readonly response: Record<string, unknown> } | { readonly code: string; readonly message: string };

/** A fault and the permitted results of the call. */
interface Scenario {
  readonly name: string;
  /** Permitted results. After a disconnect, any result is. */
  readonly expected: readonly ('success' | 'UNAVAILABLE' | 'DEADLINE_EXCEEDED' | 'no response')[];
  /**
   * Whether it is tested with every kind. The others affect code common to all kinds, and are tested only with
   * rollouts.
   */
  readonly everyKind?: true;
  /** Injects the fault. Resolves with a function that removes it after the call. */
  readonly arm: (scene: Scene) => (() => void | Promise<void>) | void | Promise<(() => void | Promise<void>) | void>;
}

interface Scene {
  readonly database: PostgresProxy;
  readonly cluster: FaultProxy;
  /** Aborts the call, like a client that disconnects. */
  readonly leave: () => void;
  /** Holds a lock in another session until released: on a table, or by default on the rows of the creation. */
  readonly lock: (milliseconds: number, ...tables: string[]) => Promise<void>;
  /** Terminates the server processes of all connections of the calls. */
  readonly terminate: () => Promise<void>;
}

const statementFaults: Readonly<Record<StatementFault, string>> = {
  cut: 'the connection is reset',
  swallowed: 'all further data is lost',
  unanswered: 'the connection is reset instead of the response',
  unheard: 'the response is lost',
};

// Statements that identify the transactions of a creation of any kind.
const opening = 'INSERT INTO resource_intents';
const takingUp = 'INSERT INTO applied_versions';
const settling = `SET state = 'active'`;

const on = (statement: string, at: FaultPoint['at'], fault?: StatementFault, more: Partial<FaultPoint> = {}) =>
  ({ statement, at, ...(fault ? { fault } : {}), ...more }) satisfies FaultPoint;

const scenarios: readonly Scenario[] = [
  { name: 'no fault', everyKind: true, expected: ['success'], arm: () => undefined },
  {
    name: 'the client disconnects during the request to the Kubernetes API',
    expected: ['no response'],
    arm: ({ cluster, leave }) => {
      Object.assign(cluster, { fault: { late: 100 }, methods: ['POST'], onFault: leave });
      return () => sleep(400);
    },
  },
  {
    name: 'the client disconnects while the working copy is written',
    expected: ['no response'],
    arm: ({ database, leave }) => void (database.point = on(takingUp, 'statement', undefined, { on: leave })),
  },
  {
    name: 'the client disconnects at the COMMIT',
    everyKind: true,
    expected: ['no response'],
    arm: ({ database, leave }) => void (database.point = on(takingUp, 'commit', undefined, { on: leave })),
  },
  {
    name: 'the Kubernetes API hangs',
    expected: ['UNAVAILABLE'],
    arm: ({ cluster }) => void Object.assign(cluster, { fault: 'frozen', methods: ['POST'] }),
  },
  {
    name: 'the Kubernetes API returns 503',
    expected: ['UNAVAILABLE'],
    arm: ({ cluster }) => void Object.assign(cluster, { fault: { status: 503 }, methods: ['POST'] }),
  },
  {
    name: 'the response of the Kubernetes API to the POST is lost',
    everyKind: true,
    expected: ['UNAVAILABLE'],
    arm: ({ cluster }) => void Object.assign(cluster, { fault: 'unanswered', methods: ['POST'] }),
  },
  {
    name: 'the response of the Kubernetes API to the POST is lost, and it remains unavailable',
    expected: ['UNAVAILABLE'],
    arm: ({ cluster }) => {
      Object.assign(cluster, {
        fault: 'unanswered',
        methods: ['POST'],
        onFault: () => setTimeout(() => Object.assign(cluster, { fault: 'frozen', methods: undefined }), 5),
      });
    },
  },
  {
    name: 'the POST reaches the Kubernetes API after the caller has its response',
    expected: ['UNAVAILABLE'],
    arm: ({ cluster }) => {
      Object.assign(cluster, { fault: { late: deadlineMilliseconds + 1500 }, methods: ['POST'] });
      return () => sleep(2000);
    },
  },
  {
    name: 'the Kubernetes API becomes unavailable after the POST',
    expected: ['success'],
    arm: ({ cluster }) => void Object.assign(cluster, { fault: 'frozen', methods: ['GET', 'PATCH', 'DELETE'] }),
  },
  {
    name: 'the Kubernetes API and the database become unavailable after the POST',
    expected: ['UNAVAILABLE'],
    arm: ({ cluster, database }) => {
      Object.assign(cluster, { fault: 'frozen', methods: ['GET', 'PATCH', 'DELETE'] });
      database.point = on(takingUp, 'statement', 'cut');
    },
  },
  ...(Object.entries(statementFaults) as [StatementFault, string][]).flatMap(([fault, what]): Scenario[] => [
    {
      name: `at the statement that records the intent, ${what}`,
      expected: ['UNAVAILABLE'],
      arm: ({ database }) => void (database.point = on(opening, 'statement', fault)),
    },
    {
      name: `at the COMMIT of the intent, ${what}`,
      // Without a response, the connection times out only after the deadline of the creation.
      expected: [fault === 'unanswered' ? 'success' : 'UNAVAILABLE'],
      arm: ({ database }) => void (database.point = on(opening, 'commit', fault)),
    },
    {
      name: `at the first statement of the working copy, ${what}`,
      expected: ['UNAVAILABLE'],
      arm: ({ database }) => void (database.point = on(takingUp, 'statement', fault)),
    },
    {
      name: `at the statement that settles the intent, ${what}`,
      expected: ['UNAVAILABLE'],
      arm: ({ database }) => void (database.point = on(settling, 'statement', fault)),
    },
    {
      name: `at the COMMIT of the working copy, ${what}`,
      everyKind: true,
      expected: [fault === 'cut' || fault === 'swallowed' ? 'UNAVAILABLE' : 'success'],
      arm: ({ database }) => void (database.point = on(takingUp, 'commit', fault)),
    },
  ]),
  {
    name: 'the response to the COMMIT is lost, and the database is unavailable for a while',
    everyKind: true,
    expected: ['success'],
    arm: ({ database }) => {
      const away = (moment: string) => {
        if (moment !== 'answered') return;
        database.leave();
        setTimeout(() => database.return(), 1500);
      };
      database.point = on(takingUp, 'commit', 'unanswered', { on: away });
    },
  },
  {
    name: 'the response to the COMMIT is lost, and the database remains unavailable',
    expected: ['DEADLINE_EXCEEDED'],
    arm: ({ database }) => {
      database.point = on(takingUp, 'commit', 'unanswered', {
        on: (moment) => moment === 'answered' && database.leave(),
      });
    },
  },
  {
    name: 'the COMMIT does not arrive, and the database remains unavailable',
    expected: ['DEADLINE_EXCEEDED'],
    arm: ({ database }) => {
      database.point = on(takingUp, 'commit', 'cut', { on: () => database.leave() });
    },
  },
  {
    name: 'the database becomes unavailable right after its response to the COMMIT',
    everyKind: true,
    expected: ['success'],
    arm: ({ database }) => {
      database.point = on(takingUp, 'commit', undefined, {
        on: (moment) => moment === 'answered' && setTimeout(() => database.leave(), 5),
      });
    },
  },
  {
    name: 'the server terminates the session during the transaction',
    expected: ['UNAVAILABLE'],
    arm: async ({ database, lock, terminate }) => {
      await lock(
        deadlineMilliseconds + 300,
        'profiles',
        'provisioning_templates',
        'ota_packages',
        'ota_rollouts',
        'users',
      );
      database.point = on(settling, 'statement', undefined, {
        on: (moment) => void (moment === 'sent' && setTimeout(() => void terminate(), 200)),
      });
    },
  },
  {
    name: 'the first table is locked beyond the deadline',
    expected: ['UNAVAILABLE'],
    arm: ({ lock }) => lock(deadlineMilliseconds + 1500, 'applied_versions'),
  },
  {
    name: 'the last table is locked beyond the deadline',
    everyKind: true,
    expected: ['UNAVAILABLE'],
    arm: ({ lock }) =>
      lock(deadlineMilliseconds + 1500, 'profiles', 'provisioning_templates', 'ota_packages', 'ota_rollouts', 'users'),
  },
  {
    name: 'the last table is locked for a while',
    expected: ['success'],
    arm: ({ lock }) => lock(600, 'profiles', 'provisioning_templates', 'ota_packages', 'ota_rollouts', 'users'),
  },
];

describe('an interrupted creation', function () {
  this.timeout(60_000);
  let tenant: TestTenant;
  let namespace: string;
  let test: TestDatabase;
  let direct: KubernetesApi;
  let database: PostgresProxy;
  let cluster: FaultProxy;
  let proxied: { database: Database; kubernetes: KubernetesApi; registry: ServiceRegistry };
  let sweeper: ResourceWriter;

  before(async () => {
    tenant = await createTestTenant(tenantId);
    ({ namespace, test, kubernetes: direct } = tenant);
    cluster = new FaultProxy(tenant.kubeconfig);
    await cluster.start();
    database = await PostgresProxy.before(test.url);
    const own = new Database(database.through(test.url), logger, { statementMilliseconds: 2000 });
    const kubernetes = new KubernetesApi(cluster.clientConfig(), logger);
    const options = { database: own, kubernetes, deadlineMilliseconds, settleMilliseconds };
    proxied = { database: own, kubernetes, registry: assembleServices(options).registry };
    sweeper = assembleServices({ database: test.database, kubernetes: direct }).writer;
  });

  after(async () => {
    await proxied.kubernetes.close();
    await database.close();
    await cluster.stop();
    await proxied.database.close().catch(() => undefined);
    await tenant.close();
  });

  const one = async (text: string, ...values: unknown[]): Promise<number> =>
    Number(
      (await test.database.system((tx) => tx.query<{ n: unknown }>(`SELECT (${text})::int AS n`, values))).rows[0]!.n,
    );

  /** Creates a profile with devices and a package, without faults. */
  const prepare = async (name: string): Promise<{ profileId: string; packageId: string }> => {
    const profileId = namedId(tenantId, 'profile', `for-${name}`);
    const packageId = namedId(tenantId, 'package', `for-${name}`);
    await test.database.tenant(tenantId, async (tx) => {
      await tx.query(
        `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
         VALUES ($1, $2, $3, $4, $4, '{}')`,
        [tenantId, profileId, namespace, `for-${name}`],
      );
      await tx.query(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, status, checksum_verified) VALUES ($1, $2, $3, $3, 'fw', '1.0.0', 'upload://', $4, '', 1, 'available', true)`,
        [tenantId, packageId, `for-${name}`, Buffer.alloc(32, name)],
      );
      for (let index = 0; index < deviceCount; index += 1) {
        const deviceId = newId();
        await createDevice(tx, {
          ...{ tenantId, deviceId, name: 'd', hardwareId: deviceId, profileId, groupIds: [] },
          credentialType: 'api_key',
        });
      }
    });
    return { profileId, packageId };
  };

  /** Returns the rows that belong to the rollout of this name. */
  const partsOfRollout = async (name: string) => {
    const ofDevices = (table: string) =>
      one(
        `SELECT count(*) FROM ${table} JOIN devices USING (tenant_id, device_id) JOIN profiles p USING (tenant_id, profile_id)
         WHERE p.resource_name = $1`,
        `for-${name}`,
      );
    const events = `SELECT count(*) FROM outbox WHERE payload LIKE '%' || $1 || '%'`;
    return {
      members: await ofDevices('ota_rollout_devices'),
      commands: await ofDevices('device_commands'),
      assignments: await ofDevices('ota_assignments'),
      events: await one(events, `"${name}"`),
    };
  };

  interface Made {
    readonly kind: Kind;
    readonly make: (
      call: <I extends DescMessage>(
        method: DescMethodUnary<I, DescMessage>,
        request: MessageInitShape<I>,
      ) => Promise<unknown>,
      name: string,
      ground: { profileId: string; packageId: string },
    ) => Promise<unknown>;
    /** Returns the rows with this name in every table that a creation writes to. */
    readonly rows: (name: string) => Promise<number>;
    /** Additional checks of an existing one. */
    readonly whole?: (name: string, response: Record<string, unknown> | undefined) => Promise<void>;
  }

  const kinds: readonly Made[] = [
    {
      kind: 'OtaRollout',
      make: (call, name, { profileId, packageId }) =>
        call(OtaService.method.createRollout, { name, packageId, targetProfileId: profileId, canaryPercent: 50 }),
      rows: async (name) => {
        const rows = await one('SELECT count(*) FROM ota_rollouts WHERE name = $1', name);
        if (rows === 0)
          expect(await partsOfRollout(name)).to.deep.equal({ members: 0, commands: 0, assignments: 0, events: 0 });
        return rows;
      },
      whole: async (name, reply) => {
        const covered = Math.ceil(deviceCount / 2);
        const parts = { members: covered, commands: covered, assignments: covered, events: 1 };
        expect(await partsOfRollout(name)).to.deep.equal(parts);
        if (reply) expect(reply).to.include({ scheduledCount: covered });
      },
    },
    {
      kind: 'DeviceProfile',
      make: (call, name) => call(ProfileService.method.createProfile, { name }),
      rows: (name) => one('SELECT count(*) FROM profiles WHERE resource_name = $1', name),
    },
    {
      kind: 'ProvisioningTemplate',
      make: (call, name, { profileId }) => call(ProvisioningService.method.createTemplate, { name, profileId }),
      rows: async (name) =>
        (await one('SELECT count(*) FROM provisioning_templates WHERE resource_name = $1', name)) ||
        one('SELECT count(*) FROM provision_keys WHERE key_hash NOT IN (SELECT key_hash FROM provisioning_templates)'),
      whole: async (_name, reply) => {
        if (reply) expect(reply['provisionKey']).to.match(/^pk_/);
      },
    },
    {
      kind: 'OtaPackage',
      make: (call, name) =>
        call(OtaService.method.createPackage, {
          ...{
            name,
            type: 1,
            version: '1.2.3',
            artifactUri: 'upload://',
            sha256: Buffer.alloc(32, name).toString('hex'),
          },
        }),
      rows: (name) => one('SELECT count(*) FROM ota_packages WHERE name = $1', name),
    },
    {
      kind: 'Tenant',
      make: (call, name) =>
        call(AuthService.method.createTenant, {
          ...{ tenantId: name, adminEmail: 'admin@acme.test', adminPassword: 'correct horse battery' },
        }),
      rows: async (name) =>
        (await one('SELECT count(*) FROM tenants WHERE tenant_id = $1', name)) ||
        one('SELECT count(*) FROM users WHERE tenant_id = $1', name),
      whole: async (name) => {
        expect(await one('SELECT count(*) FROM users WHERE tenant_id = $1', name)).to.equal(1);
      },
    },
  ];

  let count = 0;
  for (const { kind, make, rows, whole } of kinds) {
    describe(`of a resource of kind ${kind}`, () => {
      for (const scenario of scenarios.filter(({ everyKind }) => everyKind ?? kind === 'OtaRollout')) {
        it(`${scenario.name}: ${scenario.expected.join(' or ')}`, async () => {
          count += 1;
          const name = `f${count}-${randomUUID().slice(0, 8)}`;
          const ground = await prepare(name);
          const caller = new AbortController();
          const locks: Promise<unknown>[] = [];
          const end = await scenario.arm({
            database,
            cluster,
            leave: () => caller.abort(),
            lock: async (milliseconds, ...tables) => {
              const holder = new pg.Client({ connectionString: test.url });
              await holder.connect();
              await holder.query('BEGIN');
              await holder.query(`LOCK TABLE ${tables.join(', ')} IN SHARE MODE`);
              locks.push(
                sleep(milliseconds)
                  .then(() => holder.query('ROLLBACK'))
                  .finally(() => holder.end()),
              );
            },
            terminate: async () => {
              await test.database.system((tx) =>
                tx.query(
                  `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
                   AND query LIKE '%INSERT%' AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'`,
                ),
              );
            },
          });
          const context = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId }, { signal: caller.signal });
          const call = (method: DescMethodUnary, request: MessageInitShape<DescMessage>) =>
            proxied.registry.unary(method, create(method.input, request), context);
          const outcome: Outcome = await make(call as never, name, ground).then(
            (response) => ({ response: response as Record<string, unknown> }),
            (error: unknown) =>
              error instanceof KelletError
                ? { code: error.code, message: error.message }
                : { code: String(error), message: (error as Error).stack ?? '' },
          );
          await end?.();
          await Promise.all(locks);
          database.return();
          Object.assign(cluster, { fault: 'none', methods: undefined, onFault: undefined });
          // Let the server detect lost connections and the sweep run.
          const settled = async () =>
            (await one(`SELECT count(*) FROM resource_intents WHERE name = $1 AND state = 'pending'`, name)) === 0;
          await test.database.system((tx) =>
            tx.query(`UPDATE resource_intents SET deadline = deadline - interval '1 minute' WHERE state = 'pending'`),
          );
          await sweeper.sweep();
          expect(await settled(), 'the intent is settled').to.equal(true);

          const result = 'response' in outcome ? 'success' : caller.signal.aborted ? 'no response' : outcome.code;
          const object = await direct.get(kind, kind === 'Tenant' ? '' : namespace, resourceName(name));
          const found = await rows(resourceName(name));
          const state = `result: ${JSON.stringify(outcome, (_key, value: unknown) => (typeof value === 'bigint' ? Number(value) : value))}; resource: ${Boolean(object)}; rows: ${found}`;
          if (!caller.signal.aborted) expect(scenario.expected, state).to.include(result);
          expect(found, state).to.equal(object ? 1 : 0);
          if (result === 'success') expect(found, state).to.equal(1);
          if (result === 'UNAVAILABLE') expect(found, state).to.equal(0);
          if (found === 1) {
            expect(object!.apiVersion).to.equal(apiVersion);
            const intentId = object!.metadata.annotations![intentAnnotation];
            const active = `SELECT count(*) FROM resource_intents WHERE intent_id = $1 AND state = 'active'`;
            expect(await one(active, intentId), state).to.equal(1);
            await whole?.(resourceName(name), 'response' in outcome ? outcome.response : undefined);
          }
        });
      }
    });
  }
});
