// The table of the commands of kellet-apiserver. Each command has a file in the folder of its subject.
import { hostname, userInfo } from 'node:os';
import { loadKubeConfig } from '@kellet/kubernetes';
import { keysUsage, runKeysCommand } from './auth/access-tokens/keys-command.ts';
import { backupUsage, restoreUsage, runBackupCommand, runRestoreCommand } from './backup/backup-command.ts';
import { runWalletCommand, walletUsage } from './chain-anchor/wallet-command.ts';
import { type Config, readConfig, s3SettingsOf } from './config/config.ts';
import { configUsage, runConfigCommand } from './config/config-command.ts';
import { ArtifactStores } from './device-link/ota/artifacts/artifact-stores.ts';
import { artifactsUsage, runArtifactsCommand } from './device-link/ota/artifacts/artifacts-command.ts';
import { fsckUsage, runFsckCommand } from './fsck/fsck-command.ts';
import { type AuditFacts, systemFacts } from './platform/audit/audit-event.ts';
import { AuditTrail } from './platform/audit/audit-trail.ts';
import { systemClock } from './platform/clock.ts';
import { Database } from './platform/database/database.ts';
import { migrate } from './platform/database/migrate.ts';
import { eventsUsage, runEventsCommand } from './platform/events/outbox-command.ts';
import { KubernetesApi } from './platform/kubernetes/kubernetes.ts';
import { nearestName } from './platform/nearest-name.ts';
import { createLogger, type Logger } from './platform/observability/logger.ts';
import { createMetrics } from './platform/observability/metrics.ts';
import { coldUsage, runColdCommand } from './telemetry/cold/cold-command.ts';
import { publishPointsUsage, runPublishPointsCommand } from './telemetry/live/publish-points-command.ts';
import { runTenantCommand, tenantUsage } from './tenant-data/tenant-command.ts';

type Write = (line: string) => void;

/** What a command is given. */
interface CommandParts {
  /** Reads the settings. Throws an Error that lists what is wrong with them. */
  readonly readConfig: () => Config;
  readonly logger: Logger;
  /** Prints a line of the result. */
  readonly write: Write;
  /** Prints a line on standard error, such as progress. */
  readonly note: Write;
}

/** A command. */
interface Command {
  /** The help text. */
  readonly usage: string;
  /** Returns the exit code: 0 success, 1 failure, 2 bad usage, or what the usage says. */
  readonly run: (args: readonly string[], parts: CommandParts) => Promise<number>;
}

/** What a command on the database works with. */
interface OnDatabase {
  readonly config: Config;
  readonly database: Database;
  readonly logger: Logger;
  readonly audit: AuditTrail;
  readonly write: Write;
}

/**
 * Makes a command that works on the database while the server runs, and migrates it first. It is recorded in the audit log of
 * the platform before it runs, whatever comes of it, unless its first word is one of `reading`.
 */
const onDatabase = (
  name: string,
  usage: string,
  reading: readonly string[],
  work: (args: readonly string[], parts: OnDatabase) => Promise<number>,
): readonly [string, Command] => [
  name,
  {
    usage,
    run: async (args, { readConfig, logger, write }) => {
      const config = readConfig();
      const database = new Database(config.databaseUrl, logger, {
        directUrl: config.databaseDirectUrl,
        maximumConnections: 2,
      });
      const audit = new AuditTrail({ database, clock: systemClock, logger, metrics: createMetrics() });
      try {
        await migrate(database, logger);
        if (isRecorded(args, usage, reading)) {
          await database.system((tx) => audit.within(tx, commandFacts([name, ...args].join(' '))));
        }
        return await work(args, { config, database, logger, audit, write });
      } finally {
        await database.close();
      }
    },
  },
];

/**
 * Reports whether the arguments of a command may change something: their first word, or its flag, is in its usage, and not a reading
 * one.
 */
export const isRecorded = ([verb = '']: readonly string[], usage: string, reading: readonly string[]): boolean =>
  verb !== '' && !reading.includes(verb) && usage.split(/[\s|[\]]+/).includes(verb.split('=')[0]!);

/** Returns the audit event of a command, whose actor is the user of the operating system. */
const commandFacts = (words: string): AuditFacts => ({
  ...systemFacts('command', { kind: 'command', id: words }, { kind: 'command', id: userName(), name: hostname() }),
  result: 'UNKNOWN',
});

/** A user of a container need not have a name. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return String(process.getuid?.() ?? '');
  }
}

/** The commands by name. */
export const commands: Readonly<Record<string, Command>> = {
  ...Object.fromEntries([
    onDatabase('wallet', walletUsage, ['address', 'balance'], runWalletCommand),
    onDatabase('keys', keysUsage, ['list'], (args, { config, ...parts }) =>
      runKeysCommand(args, { ...parts, configuredKey: config.jwtPrivateKey }),
    ),
    onDatabase('publish-points', publishPointsUsage, ['list'], (args, { config, database, write }) =>
      runPublishPointsCommand(args, { database, setting: config.publishPoints, write }),
    ),
    onDatabase('events', eventsUsage, ['list', 'show'], runEventsCommand),
    onDatabase('cold', coldUsage, [], runColdCommand),
    onDatabase('tenant', tenantUsage, [], (args, parts) =>
      runTenantCommand(args, {
        ...parts,
        openKubernetes: () => new KubernetesApi(loadKubeConfig(process.env['KUBECONFIG']), parts.logger),
      }),
    ),
    onDatabase('artifacts', artifactsUsage, ['status'], (args, { config, ...parts }) =>
      runArtifactsCommand(args, {
        ...parts,
        stores: new ArtifactStores(config.artifactStore, s3SettingsOf(config)),
      }),
    ),
  ]),
  config: {
    usage: configUsage,
    run: (args, { write }) => Promise.resolve(runConfigCommand(args, { environment: process.env, write })),
  },
  fsck: { usage: fsckUsage, run: runFsckCommand },
  backup: { usage: backupUsage, run: runBackupCommand },
  restore: { usage: restoreUsage, run: runRestoreCommand },
};

/** Returns the lines of all commands for the help text of the program. */
export const commandSummary = (): string =>
  Object.values(commands)
    .flatMap(({ usage }) => [...usage.matchAll(/^(?:usage:| {6}) (kellet-apiserver .+)$/gm)])
    .map(([, line]) => `       ${line}`)
    .join('\n');

/** Runs a command and returns its exit code. */
export async function runCommand(name: string, args: readonly string[], write: Write): Promise<number> {
  const { usage, run } = commands[name]!;
  if (args.includes('--help') || args.includes('-h')) {
    write(usage);
    return 0;
  }
  const [words, configFlags] = name === 'config' ? [args, []] : takeConfigFlag(args);
  const problem = name === 'config' ? undefined : unknownFlag(words, usage);
  if (problem !== undefined) {
    note(`kellet-apiserver ${name}: ${problem}`);
    return 2;
  }
  return run(words, {
    readConfig: () => readConfig(process.env, configFlags, 'command'),
    logger: createLogger('warn', { process: `kellet-apiserver ${name}` }),
    write,
    note,
  });
}

const note = (line: string): void => void process.stderr.write(`${line}\n`);

/** Returns what is wrong with a flag that the usage of a command does not name, or undefined. */
export function unknownFlag(words: readonly string[], usage: string): string | undefined {
  const known = new Set([...(usage.match(/--[a-z-]+/g) ?? []), '--config', '--help']);
  const flag = words.find((word) => word.startsWith('-') && !known.has(word.split('=')[0]!))?.split('=')[0];
  return flag === undefined ? undefined : `unknown flag ${flag}; did you mean ${nearestName(flag, known)}?`;
}

/** Separates `--config FILE` from the other arguments. */
function takeConfigFlag(args: readonly string[]): [words: string[], flags: string[]] {
  const words = [...args];
  const at = words.findIndex((word) => word === '--config' || word.startsWith('--config='));
  return at < 0 ? [words, []] : [words, words.splice(at, words[at] === '--config' ? 2 : 1)];
}
