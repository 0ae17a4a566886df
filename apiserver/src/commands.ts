// The table of the commands of kellet-apiserver. Each command has a file in the folder of its subject.
import { loadKubeConfig } from '@kellet/kubernetes';
import { keysUsage, runKeysCommand } from './auth/access-tokens/keys-command.ts';
import { backupUsage, restoreUsage, runBackupCommand, runRestoreCommand } from './backup/backup-command.ts';
import { runWalletCommand, walletUsage } from './chain-anchor/wallet-command.ts';
import { type Config, readConfig, s3SettingsOf } from './config/config.ts';
import { configUsage, runConfigCommand } from './config/config-command.ts';
import { ArtifactStores } from './device-link/ota/artifacts/artifact-stores.ts';
import { artifactsUsage, runArtifactsCommand } from './device-link/ota/artifacts/artifacts-command.ts';
import { fsckUsage, runFsckCommand } from './fsck/fsck-command.ts';
import { Database } from './platform/database/database.ts';
import { migrate } from './platform/database/migrate.ts';
import { eventsUsage, runEventsCommand } from './platform/events/outbox-command.ts';
import { KubernetesApi } from './platform/kubernetes/kubernetes.ts';
import { nearestName } from './platform/nearest-name.ts';
import { createLogger, type Logger } from './platform/observability/logger.ts';
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

/** Makes a command that works on the database while the server runs, and migrates it first. */
const onDatabase = (
  usage: string,
  work: (args: readonly string[], config: Config, database: Database, logger: Logger, write: Write) => Promise<number>,
): Command => ({
  usage,
  run: async (args, { readConfig, logger, write }) => {
    const config = readConfig();
    const database = new Database(config.databaseUrl, logger, {
      directUrl: config.databaseDirectUrl,
      maximumConnections: 2,
    });
    try {
      await migrate(database, logger);
      return await work(args, config, database, logger, write);
    } finally {
      await database.close();
    }
  },
});

/** The commands by name. */
export const commands: Readonly<Record<string, Command>> = {
  wallet: onDatabase(walletUsage, (args, config, database, logger, write) =>
    runWalletCommand(args, { config, database, logger, write }),
  ),
  keys: onDatabase(keysUsage, (args, { jwtPrivateKey: configuredKey }, database, logger, write) =>
    runKeysCommand(args, { database, logger, configuredKey, write }),
  ),
  'publish-points': onDatabase(publishPointsUsage, (args, { publishPoints }, database, _logger, write) =>
    runPublishPointsCommand(args, { database, setting: publishPoints, write }),
  ),
  events: onDatabase(eventsUsage, (args, _config, database, _logger, write) =>
    runEventsCommand(args, { database, write }),
  ),
  cold: onDatabase(coldUsage, (args, config, database, logger, write) =>
    runColdCommand(args, { config, database, logger, write }),
  ),
  tenant: onDatabase(tenantUsage, (args, config, database, logger, write) =>
    runTenantCommand(args, {
      ...{ config, database, logger, write },
      openKubernetes: () => new KubernetesApi(loadKubeConfig(process.env['KUBECONFIG']), logger),
    }),
  ),
  artifacts: onDatabase(artifactsUsage, (args, config, database, logger, write) =>
    runArtifactsCommand(args, {
      ...{ database, logger, write },
      stores: new ArtifactStores(config.artifactStore, s3SettingsOf(config)),
    }),
  ),
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
    readConfig: () => readConfig(process.env, configFlags),
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
