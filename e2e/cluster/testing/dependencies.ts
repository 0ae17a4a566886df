// What an installation in the cluster needs and does not bring: PostgreSQL, NATS, a chain and an artifact server, as
// processes of this machine that pods reach at the bridge's address.
import { connect, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import type { NodeCluster } from '../../../dev/stack/node/node.ts';
import { findFreePorts } from '../../../dev/stack/ports/free-ports.ts';
import { natsServerProgram } from '../../../dev/stack/programs/binaries.ts';
import type { Report } from '../../../dev/stack/programs/go-build.ts';
import { openSecrets, randomHexKey } from '../../../dev/stack/secrets.ts';
import { serveArtifacts } from '../../../dev/stack/services/artifacts.ts';
import { startDevchain } from '../../../dev/stack/services/devchain.ts';
import { startNats } from '../../../dev/stack/services/nats.ts';
import { ensureServiceDatabase, startPostgres } from '../../../dev/stack/services/postgres.ts';

/** Addresses of the dependencies, as pods reach them. */
export interface Dependencies {
  databaseUrl: string;
  natsUrl: string;
  devchain: string;
  /** Base URL of the files in `artifactsFolder`. */
  artifacts: string;
  artifactsFolder: string;
  callbackSecret: string;
  /** Closes what the cluster's supervisor does not stop. */
  close(): Promise<void>;
}

/** Accepts connections to a port at `address` and passes them to the same port of 127.0.0.1. */
function forward(address: string, port: number): Promise<Server> {
  const server = createServer((socket) => {
    const target = connect({ port, host: '127.0.0.1' });
    for (const [from, to] of [
      [socket, target],
      [target, socket],
    ] as const) {
      from.on('error', () => to.destroy());
      from.pipe(to);
    }
  });
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ port, host: address }, () => resolve(server));
  });
}

/** Starts the dependencies under the cluster's supervisor. */
export async function startDependencies(cluster: NodeCluster, folder: string, report: Report): Promise<Dependencies> {
  const { supervisor, gateway } = cluster;
  const ports = await findFreePorts('postgres', 'nats', 'devchain', 'artifacts');
  const secrets = await openSecrets(join(folder, 'secrets'));
  const password = await secrets('postgres', randomHexKey);
  const callbackSecret = await secrets('callback', randomHexKey);
  const { superuserUrl } = await startPostgres({
    supervisor,
    folder: join(folder, 'postgres'),
    port: ports.postgres,
    password: password.value,
  });
  const databaseUrl = await ensureServiceDatabase(superuserUrl, password.value);
  const program = await natsServerProgram(report);
  const natsUrl = await startNats({ supervisor, program, folder: join(folder, 'nats'), port: ports.nats });
  const devchain = await startDevchain({
    supervisor,
    folder: join(folder, 'devchain'),
    port: ports.devchain,
    callbackSecret,
  });
  const artifactsFolder = join(folder, '../artifacts');
  const artifacts = await serveArtifacts(artifactsFolder, ports.artifacts);
  const servers = await Promise.all(Object.values(ports).map((port) => forward(gateway, port)));
  const outside = (url: string): string => url.replace('127.0.0.1', gateway);
  return {
    databaseUrl: outside(databaseUrl),
    natsUrl: outside(natsUrl),
    devchain: outside(devchain),
    artifacts: outside(artifacts.url),
    artifactsFolder,
    callbackSecret: callbackSecret.value,
    close: async () => {
      for (const server of servers) server.close();
      await artifacts.close();
    },
  };
}
