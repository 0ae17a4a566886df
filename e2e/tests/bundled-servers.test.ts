// The servers that the chart brings for trials, as their pods run them: the same arguments, variables and configuration, on
// this machine's ports and folders. (The entry script of PostgreSQL's image is not part of this repository.)
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { parseAllDocuments } from 'yaml';
import { Broker } from '../../apiserver/src/platform/events/broker.ts';
import { callbackSubject } from '../../apiserver/src/platform/events/subjects.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import { checkout } from '../../dev/stack/paths.ts';
import { findFreePorts } from '../../dev/stack/ports/free-ports.ts';
import { helmProgram, natsServerProgram } from '../../dev/stack/programs/binaries.ts';
import { waitUntil } from '../../dev/stack/wait.ts';

interface Manifest {
  kind: string;
  metadata: { name: string };
  data?: Record<string, string>;
  spec?: {
    template: {
      spec: {
        containers: {
          args: string[];
          env: { name: string; value?: string; valueFrom?: { secretKeyRef: { name: string; key: string } } }[];
          readinessProbe: { httpGet?: { path: string } };
        }[];
      };
    };
  };
}

const text = (encoded: string): string => Buffer.from(encoded, 'base64').toString();

describe('the bundled NATS server', function () {
  this.timeout(120_000);
  let folder: string;
  before(async () => (folder = await mkdtemp(join(tmpdir(), 'kellet-bundled-'))));
  after(() => rm(folder, { recursive: true }));

  it('starts with its configuration, is ready, and accepts its password alone', async () => {
    const values = 'secrets.generate=true,postgresql.enabled=true,nats.enabled=true';
    const helm = await helmProgram(() => undefined);
    const { stdout } = await promisify(execFile)(
      helm,
      ['template', 'trial', join(checkout, 'charts/kellet'), '--set', values],
      { maxBuffer: 16 << 20 },
    );
    const manifests = parseAllDocuments(stdout).map((document) => document.toJS() as Manifest | null);
    const find = (kind: string) =>
      manifests.find((manifest) => manifest?.kind === kind && manifest.metadata.name === 'trial-kellet-nats')!;
    const secret = find('Secret').data!;
    const [container] = find('StatefulSet').spec!.template.spec.containers;
    const ports = await findFreePorts('client', 'monitor');
    const configuration = join(folder, 'nats.conf');
    await writeFile(
      configuration,
      find('ConfigMap')
        .data!['nats.conf']!.replace('port: 4222', `port: ${ports.client}`)
        .replace('http_port: 8222', `http_port: ${ports.monitor}`)
        .replace('"/data"', JSON.stringify(join(folder, 'data'))),
    );
    const environment = container!.env.map(({ name, value, valueFrom }) => [
      name,
      value ?? text(secret[valueFrom!.secretKeyRef.key]!),
    ]);
    const server = spawn(
      await natsServerProgram(() => undefined),
      [...container!.args.map((arg) => arg.replace('/etc/nats/nats.conf', configuration)), '--addr', '127.0.0.1'],
      { stdio: 'ignore', env: Object.fromEntries(environment) as Record<string, string> },
    );
    const ended = once(server, 'exit');
    const brokers: Broker[] = [];
    try {
      const ready = `http://127.0.0.1:${ports.monitor}${container!.readinessProbe.httpGet!.path}`;
      await waitUntil(async () => (await fetch(ready).catch(() => undefined))?.ok, { what: 'readiness' });
      // What the Secret gives to the data plane, at the address of this machine.
      const url = text(secret['natsUrl']!).replace('trial-kellet-nats:4222', `127.0.0.1:${ports.client}`);
      const lines: string[] = [];
      const logger = createLogger('warn', {}, { write: (line: string) => void lines.push(line) });
      const broker = new Broker(url, logger);
      brokers.push(broker);
      await waitUntil(async () => broker.isConnected, { what: 'the connection' });
      // The largest callback that the gateway accepts is smaller.
      await broker.publish(callbackSubject, Buffer.alloc(7 << 20), 'large');
      const stranger = new Broker(url.replace(/:[^:@/]+@/, ':wrong@'), logger);
      brokers.push(stranger);
      await waitUntil(async () => lines.some((line) => line.includes('unreachable')), { what: 'the refusal' });
      expect(stranger.isConnected).to.equal(false);
    } finally {
      for (const broker of brokers) await broker.close();
      server.kill('SIGKILL');
      await ended;
    }
  });
});
