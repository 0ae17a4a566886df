// A cluster of three NATS servers (KELLET_TEST_NATS_SERVER) for a test, which can kill a member with its files and start it again.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'nats';
import { eventually } from './eventually.ts';
import { freePort, ServerProcess } from './server-process.ts';

interface Member {
  readonly name: string;
  readonly server: ServerProcess;
  /** The port on which it listens for the other members. */
  readonly routePort: number;
}

/** Three servers that replicate streams. */
export class TestNatsCluster {
  private readonly members: readonly Member[];
  private readonly folder: string;

  private constructor(members: readonly Member[], folder: string) {
    this.members = members;
    this.folder = folder;
  }

  /** Starts the servers and waits until they have formed a cluster. */
  static async start(): Promise<TestNatsCluster> {
    const members: Member[] = [];
    for (const name of ['a', 'b', 'c']) {
      const server = new ServerProcess(await freePort(), 'NATS', 'data');
      members.push({ name, server, routePort: await freePort() });
    }
    const cluster = new TestNatsCluster(members, await mkdtemp(join(tmpdir(), 'kellet-nats-cluster-')));
    await Promise.all(members.map(({ name }) => cluster.startMember(name)));
    const client = await connect({ servers: cluster.urls.map((url) => url.slice('nats://'.length)) });
    try {
      const manager = () => client.jetstreamManager();
      // A stream of three replicas is placed once every member has joined.
      const probe = { name: 'PROBE', subjects: ['probe'], num_replicas: 3 };
      await eventually(() =>
        manager()
          .then((jetstream) => jetstream.streams.add(probe))
          .then(
            () => true,
            () => false,
          ),
      );
      await (await manager()).streams.delete('PROBE');
    } finally {
      await client.close();
    }
    return cluster;
  }

  /** The URLs of the members `a`, `b` and `c`. */
  get urls(): string[] {
    return this.members.map(({ server }) => `nats://127.0.0.1:${server.port}`);
  }

  /** Returns the URL of a member. */
  urlOf(name: string): string {
    return this.urls[this.members.findIndex((member) => member.name === name)]!;
  }

  /** Starts a member with the files it has. */
  async startMember(name: string): Promise<void> {
    const program = process.env['KELLET_TEST_NATS_SERVER'];
    if (!program) throw new Error('KELLET_TEST_NATS_SERVER is not set: run the tests with make test');
    const { server, routePort } = this.memberOf(name);
    const routes = this.members.map((member) => `nats://127.0.0.1:${member.routePort}`);
    const settings = join(this.folder, `${name}.conf`);
    await writeFile(
      settings,
      [
        ...[`server_name: ${name}`, `listen: "127.0.0.1:${server.port}"`],
        `jetstream { store_dir: "${join(this.folder, name)}" }`,
        `cluster { name: test, listen: "127.0.0.1:${routePort}", routes: [${routes.map((url) => `"${url}"`).join(', ')}] }`,
      ].join('\n'),
    );
    await server.start(program, ['-c', settings]);
  }

  /** Kills a member; `alsoFiles` loses its disk too. */
  async kill(name: string, { alsoFiles }: { alsoFiles: boolean }): Promise<void> {
    await this.memberOf(name).server.kill();
    if (alsoFiles) await rm(join(this.folder, name), { recursive: true, force: true });
  }

  /** Kills all servers and removes their files. */
  async stop(): Promise<void> {
    await Promise.all(this.members.map(({ server }) => server.kill()));
    await rm(this.folder, { recursive: true, force: true });
  }

  private memberOf(name: string): Member {
    return this.members.find((member) => member.name === name)!;
  }
}
