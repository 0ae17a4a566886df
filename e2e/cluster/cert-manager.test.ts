// TLS by the real cert-manager, in a cluster with real pods: its controllers, as a process of this machine, make the
// certificates of examples/install/cert-manager.yaml and of the chart, and renew them under pods that keep running.
import { execFile } from 'node:child_process';
import { randomBytes, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { openResources, systemNamespace } from '../../dev/stack/cluster/resources.ts';
import { type NodeCluster, startNodeCluster } from '../../dev/stack/node/node.ts';
import { checkout, defaultStateFolder } from '../../dev/stack/paths.ts';
import { certManagerProgram, helmProgram } from '../../dev/stack/programs/binaries.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { installForeignDefinitions } from '../testing/foreign-definitions.ts';
import { type Dependencies, startDependencies } from './testing/dependencies.ts';
import { createInstallationSecret } from './testing/installation-secret.ts';

const execute = promisify(execFile);
const state = join(defaultStateFolder, 'cert-manager-test');
const report = (line: string) => console.log(`    ${line}`);
const host = 'mqtt.kellet.test';
/** Operator and data plane connect to it, each with a certificate. */
const internalPort = 9091;

interface Pod {
  metadata: { name: string };
  status: { podIP: string; containerStatuses: { restartCount: number }[] };
}
interface Certificate {
  status: { conditions: { type: string; status: string }[] };
}

/**
 * Returns the serial number of the certificate that a server at `address` has, and whether `authority` vouches for it, and
 * it for the host's name. The names of the internal port's certificate mean nothing: only its authority is checked.
 */
function served(address: string, port: number, authority: string): Promise<{ serial: string; isTrusted: boolean }> {
  const socket = connect({
    ...{ host: address, port, servername: host, ca: authority, rejectUnauthorized: false },
    ...(port === internalPort && { checkServerIdentity: () => undefined }),
  });
  return new Promise<{ serial: string; isTrusted: boolean }>((resolve, reject) => {
    socket.once('error', reject);
    socket.once('secureConnect', () =>
      resolve({ serial: socket.getPeerCertificate().serialNumber, isTrusted: socket.authorized }),
    );
  }).finally(() => socket.destroy());
}

describe('TLS by cert-manager', function () {
  this.timeout(20 * 60_000);
  let cluster: NodeCluster;
  let dependencies: Dependencies;
  let helm: string;

  const kubectl = () => cluster.kubectl.in(systemNamespace);
  const podsOf = async (component: string): Promise<Pod[]> => {
    const selector = `app.kubernetes.io/component=${component}`;
    return (await kubectl().json<{ items: Pod[] }>(['get', 'pods', '--selector', selector])).items;
  };
  const secretOf = async (name: string) => {
    const { data } = await kubectl().json<{ data: Record<string, string> }>(['get', 'secret', name]);
    const text = (key: string) => Buffer.from(data[key]!, 'base64').toString();
    return { serial: new X509Certificate(text('tls.crt')).serialNumber, authority: text('ca.crt') };
  };
  /** Asks cert-manager to renew a certificate, as `cmctl renew` does. Returns when the Secret has another. */
  const renew = async (certificate: string, secret: string): Promise<void> => {
    const { serial } = await secretOf(secret);
    const { status } = await kubectl().json<Certificate>(['get', 'certificate', certificate]);
    const asked = { type: 'Issuing', status: 'True', reason: 'ManuallyTriggered', message: 'Asked to renew.' };
    const conditions = [...status.conditions.filter(({ type }) => type !== 'Issuing'), asked];
    const patch = JSON.stringify({ status: { conditions } });
    await kubectl().run([
      'patch',
      'certificate',
      certificate,
      '--subresource=status',
      '--type=merge',
      '--patch',
      patch,
    ]);
    await waitUntil(async () => (await secretOf(secret)).serial !== serial, {
      what: `another certificate in ${secret}`,
      timeoutMilliseconds: 120_000,
    });
  };
  /** Waits until each of these pods has the certificate of a Secret at a port. */
  const untilServed = async (secret: string, port: number): Promise<void> => {
    const { serial, authority } = await secretOf(secret);
    for (const { metadata, status } of await podsOf('apiserver')) {
      await waitUntil(async () => (await served(status.podIP, port, authority)).serial === serial, {
        what: `the certificate of ${secret} at port ${port} of ${metadata.name}`,
        // The kubelet renews the files of a pod within two minutes.
        timeoutMilliseconds: 300_000,
      });
      expect((await served(status.podIP, port, authority)).isTrusted, metadata.name).to.equal(true);
    }
  };
  const applyProfile = async (name: string): Promise<void> => {
    const metadata = { name, namespace: 'kellet-harbour' };
    const own = cluster.kubectl.in(metadata.namespace);
    await own.apply({ apiVersion: 'kellet.dev/v1alpha1', kind: 'DeviceProfile', metadata, spec: { type: 'buoy' } });
    await own.wait(`deviceprofile/${name}`, 'condition=Ready', 120);
  };

  before(async () => {
    helm = await helmProgram(report);
    const program = await certManagerProgram(report);
    const building = execute(process.execPath, ['packaging/image.ts', '--output', `${state}-image.tar`], {
      cwd: checkout,
    });
    cluster = await startNodeCluster(state, report);
    dependencies = await startDependencies(cluster, join(state, 'dependencies'), report);
    await building;
    await cluster.importImage(`${state}-image.tar`);
    await installForeignDefinitions(cluster.kubectl);
    await cluster.supervisor.start({
      name: 'cert-manager',
      command: program,
      args: [`-kubeconfig=${cluster.kubeconfig}`],
      isReady: async () => true,
    });
  });
  after(async function () {
    if (this.currentTest?.state === 'failed') report(`logs were in ${state}/logs`);
    await dependencies?.close();
    await cluster?.stop();
  });

  it('makes the certificates of the example, each signed by the authority that it names', async () => {
    await createInstallationSecret(cluster, dependencies);
    await kubectl().run(['apply', '--filename', join(checkout, 'examples/install/cert-manager.yaml')]);
    const names = ['kellet-control-authority', 'kellet-control', 'kellet-public-tls'];
    await kubectl().wait(
      names.map((name) => `certificate/${name}`),
      'condition=Ready',
      120,
    );
    expect((await secretOf('kellet-control-tls')).authority).to.equal(
      (await secretOf('kellet-control-authority')).authority,
    );
  });

  it('makes the certificate of the chart, with which its pods start and serve REST and MQTT', async () => {
    const publicAuthority = {
      apiVersion: 'cert-manager.io/v1',
      kind: 'Certificate',
      metadata: { name: 'public-authority', namespace: systemNamespace },
      spec: {
        ...{ secretName: 'public-authority', isCA: true, commonName: 'public authority' },
        ...{ privateKey: { algorithm: 'ECDSA', size: 256 }, issuerRef: { name: 'self-signed' } },
      },
    };
    const issuer = {
      apiVersion: 'cert-manager.io/v1',
      kind: 'Issuer',
      metadata: { name: 'public', namespace: systemNamespace },
      spec: { ca: { secretName: 'public-authority' } },
    };
    await kubectl().apply(publicAuthority, issuer);
    const values = {
      'image.repository': 'localhost/kellet',
      environment: 'development',
      network: 'local',
      'platformAdmin.email': 'platform@kellet.test',
      'certificate.issuer.name': 'public',
      'certificate.issuer.kind': 'Issuer',
      'apiserver.mqtt.host': host,
      'apiserver.tls.secret': 'kellet-public',
      controlTlsSecret: 'kellet-control-tls',
    };
    const set = Object.entries(values).flatMap(([name, value]) => ['--set', `${name}=${value}`]);
    const target = ['--namespace', systemNamespace, '--kubeconfig', cluster.kubeconfig];
    const chart = join(checkout, 'charts/kellet');
    await execute(helm, ['install', 'kellet', chart, ...set, ...target, '--wait', '--timeout', '5m']);
    expect((await execute(helm, ['test', 'kellet', ...target])).stdout).to.match(/Phase: +Succeeded/);
    await untilServed('kellet-public', 8080);
    await untilServed('kellet-public', 8883);
  });

  it('lets operator and data plane trust each other by its certificates', async () => {
    const password = randomBytes(18).toString('base64url');
    await openResources(cluster.kubeconfig).applyTenant({ tenant: 'harbour', email: 'admin@harbour.test', password });
    await applyProfile('before-the-renewal');
  });

  it('renews each certificate, which pods then use without a restart', async () => {
    const identities = async () =>
      (await Promise.all(['apiserver', 'operator'].map(podsOf)))
        .flat()
        .map(({ metadata, status }) => `${metadata.name} ${status.containerStatuses[0]!.restartCount}`);
    const before = await identities();
    await renew('kellet-public', 'kellet-public');
    await renew('kellet-control', 'kellet-control-tls');
    for (const port of [8080, 8883]) await untilServed('kellet-public', port);
    await untilServed('kellet-control-tls', internalPort);
    await applyProfile('after-the-renewal');
    expect(await identities()).to.deep.equal(before);
    expect(before.every((identity) => identity.endsWith(' 0'))).to.equal(true);
  });
});
