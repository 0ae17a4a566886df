// mocha root-hook plugin: one PostgreSQL and one NATS server for a whole run of unit tests.
// Use: mocha --require ./dev/stack/testing/test-services.ts 'apiserver/src/**/*.test.ts'
// Tests find KELLET_TEST_DATABASE_URL (a superuser's: each suite creates a separate database) and
// KELLET_TEST_NATS_URL, which are left alone when they are set already; and KELLET_TEST_NATS_SERVER, KELLET_TEST_REDIS_SERVER,
// KELLET_TEST_S3_SERVER and KELLET_TEST_POSTGRES_PROGRAMS (a folder, with KELLET_TEST_POSTGRES_USER), programs that a test
// starts by itself, because it also stops or configures them. Where there is no Redis, KELLET_TEST_REDIS_PROBLEM says why, and only the tests that need it fail.
import { chmod, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { findFreePorts } from '../ports/free-ports.ts';
import { createSupervisor, type Supervisor } from '../processes/supervisor.ts';
import { natsServerProgram, s3ServerProgram } from '../programs/binaries.ts';
import { redisServerProgram } from '../programs/redis-server.ts';
import { randomPassword } from '../secrets.ts';
import { startNats } from '../services/nats.ts';
import { postgresPrograms, startPostgres } from '../services/postgres.ts';
import { makeMemoryFolder } from './memory-folder.ts';

let supervisor: Supervisor | undefined;
let folder: string | undefined;
/** Environment variables that name services started here. */
const ownVariables: string[] = [];

function setForTests(name: string, value: string): void {
  process.env[name] = value;
  ownVariables.push(name);
}

const report = (line: string) => process.stderr.write(`${line}\n`);

async function findRedisServer(): Promise<void> {
  try {
    process.env.KELLET_TEST_REDIS_SERVER ??= await redisServerProgram(report);
  } catch (error) {
    process.env.KELLET_TEST_REDIS_PROBLEM = (error as Error).message;
  }
}

async function findPostgresPrograms(): Promise<void> {
  if (process.env.KELLET_TEST_POSTGRES_PROGRAMS) return;
  const { folder: programs, user } = await postgresPrograms();
  process.env.KELLET_TEST_POSTGRES_PROGRAMS = programs;
  process.env.KELLET_TEST_POSTGRES_USER = user ? `${user.uid}:${user.gid}` : '';
}

async function start(): Promise<void> {
  await findRedisServer();
  await findPostgresPrograms();
  process.env.KELLET_TEST_NATS_SERVER ??= await natsServerProgram(report);
  process.env.KELLET_TEST_S3_SERVER ??= await s3ServerProgram(report);
  const { KELLET_TEST_DATABASE_URL, KELLET_TEST_NATS_URL } = process.env;
  if (KELLET_TEST_DATABASE_URL && KELLET_TEST_NATS_URL) return;
  folder = makeMemoryFolder();
  await chmod(folder, 0o711);
  const services = createSupervisor({
    recordsFolder: join(folder, 'run'),
    logsFolder: join(folder, 'logs'),
    report,
  });
  supervisor = services;
  const ports = await findFreePorts('database', 'nats');
  const database = async () => {
    if (KELLET_TEST_DATABASE_URL) return;
    const options = { supervisor: services, folder: join(folder!, 'postgres'), port: ports.database };
    const { superuserUrl } = await startPostgres({
      ...options,
      password: randomPassword(),
      survivesPowerFailure: false,
    });
    setForTests('KELLET_TEST_DATABASE_URL', superuserUrl);
  };
  const broker = async () => {
    if (KELLET_TEST_NATS_URL) return;
    const program = process.env.KELLET_TEST_NATS_SERVER!;
    const options = { supervisor: services, program, folder: join(folder!, 'nats'), port: ports.nats };
    setForTests('KELLET_TEST_NATS_URL', await startNats(options));
  };
  await Promise.all([database(), broker()]);
}

/** Runs once before all tests, in the main process also when mocha runs in parallel. */
export async function mochaGlobalSetup(): Promise<void> {
  try {
    await start();
  } catch (error) {
    await mochaGlobalTeardown();
    throw error;
  }
}

/** Runs once after all tests. */
export async function mochaGlobalTeardown(): Promise<void> {
  // A later user of the services starts them again.
  for (const name of ownVariables.splice(0)) delete process.env[name];
  await supervisor?.stopAll();
  if (folder) await rm(folder, { recursive: true, force: true });
  supervisor = undefined;
  folder = undefined;
}
