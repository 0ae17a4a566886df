// `make demo`: runs the full scenario on a separate stack, from the first manifest to the table of observed promises.
//
//   node dev/demo/main.ts [--attach .kellet/dev.json]
//
// With --attach it runs on an existing stack, in a new tenant.
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { Kubectl } from '../clients/kubectl.ts';
import { Rest } from '../clients/rest.ts';
import { Fleet } from '../devices/fleet.ts';
import { openResources } from '../stack/cluster/resources.ts';
import type { DevInfo } from '../stack/dev-info.ts';
import { defaultStateFolder } from '../stack/paths.ts';
import { kubectlProgram } from '../stack/programs/binaries.ts';
import { startStack } from '../stack/stack.ts';
import { writeFirmware } from './firmware.ts';
import { measure } from './measuring.ts';
import { Promises } from './promises.ts';
import { prove, proveTheRest } from './proving.ts';
import { applyQuickstart, claimIdentities } from './provisioning.ts';
import { fleetSize, type PromiseKey, promiseTexts, type Scene } from './scene.ts';
import { Terminal } from './terminal.ts';
import { listResources, stopBadFirmware, updateFleet } from './updating.ts';

/** The stack on which the demo runs. */
interface Stage {
  info: Pick<DevInfo, 'rest' | 'kubeconfig' | 'natsUrl' | 'artifacts' | 'tenant' | 'namespace' | 'email' | 'password'>;
  headersUrl: string;
  artifactsFolder: string;
  kubectl: string;
  stop(): Promise<void>;
}

const folder = join(defaultStateFolder, 'demo');
const terminal = new Terminal();
const report = (line: string) => terminal.say(line);

/** Returns the base URL of the header source. */
const headersOf = (info: Pick<DevInfo, 'devchain'>) => info.devchain ?? process.env.KELLET_HEADERS_URL ?? '';

async function startOwnStack(signal: AbortSignal): Promise<Stage> {
  terminal.say('starting the stack: Kubernetes API, PostgreSQL, NATS, devchain, apiserver, operator');
  const stack = await startStack({ stateFolder: folder, fresh: true, report, signal });
  return {
    info: stack.info,
    headersUrl: headersOf(stack.info),
    artifactsFolder: stack.artifactsFolder,
    kubectl: await stack.kubectl(),
    stop: () => stack.stop(),
  };
}

async function attach(path: string, signal: AbortSignal): Promise<Stage> {
  const info = JSON.parse(readFileSync(path, 'utf8')) as DevInfo;
  const tenant = `demo-${randomBytes(3).toString('hex')}`;
  const account = { tenant, email: `admin@${tenant}.test`, password: randomBytes(18).toString('base64url') };
  terminal.say(`running on ${info.rest}, in the new tenant ${tenant}`);
  await openResources(info.kubeconfig).applyTenant(account, signal);
  return {
    info: { ...info, ...account, namespace: `kellet-${tenant}` },
    headersUrl: headersOf(info),
    artifactsFolder: join(dirname(resolve(path)), 'artifacts'),
    kubectl: await kubectlProgram(report),
    stop: async () => undefined,
  };
}

/** Four of five devices fail on 1.2.0; each loses its connection once during its first download. */
function makeFleet(base: string): Fleet {
  const devices = Array.from({ length: fleetSize }, (_, index) => {
    const number = String(index + 1).padStart(2, '0');
    const isFailing = index % 5 !== 0;
    return {
      base,
      name: `station-${number}`,
      hardwareId: `ws-${number}`,
      behaviour: isFailing ? { kind: 'fails' as const, versions: ['1.2.0'] } : { kind: 'healthy' as const },
      cutAfterBytes: [300_000],
    };
  });
  return new Fleet(devices);
}

async function play(stage: Stage, promises: Promises<PromiseKey>): Promise<void> {
  const { info } = stage;
  await mkdir(folder, { recursive: true });
  await writeFirmware(stage.artifactsFolder);
  const fleet = makeFleet(info.rest);
  const scene: Scene = {
    terminal,
    promises,
    kubectl: new Kubectl(stage.kubectl, info.kubeconfig, info.namespace),
    admin: await Rest.login(info.rest, info),
    fleet,
    tenant: info.tenant,
    natsUrl: info.natsUrl,
    headersUrl: stage.headersUrl,
    artifacts: info.artifacts,
    folder,
    provisionKey: '',
  };
  await applyQuickstart(scene);
  await claimIdentities(scene);
  await measure(scene);
  await prove(scene);
  fleet.start();
  try {
    await updateFleet(scene);
    await stopBadFirmware(scene);
  } finally {
    await fleet.stop();
  }
  await proveTheRest(scene);
  await listResources(scene);
}

const { values } = parseArgs({ options: { attach: { type: 'string' } } });
const interruption = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.once(signal, () => interruption.abort(new Error('interrupted')));
}

const promises = new Promises<PromiseKey>(promiseTexts);
let stage: Stage | undefined;
try {
  stage = await (values.attach ? attach(values.attach, interruption.signal) : startOwnStack(interruption.signal));
  const interrupted = new Promise<never>((_, reject) => {
    interruption.signal.addEventListener('abort', () => reject(new Error('interrupted')));
  });
  await Promise.race([play(stage, promises), interrupted]);
} catch (error) {
  terminal.say(`the demo failed: ${error instanceof Error ? error.message : String(error)}`);
}
if (interruption.signal.aborted) {
  await stage?.stop();
  process.exit(130);
}
terminal.chapter('h', 'What was promised');
terminal.print(promises.table());
await stage?.stop();
terminal.say(promises.areKept ? 'every promise was kept' : 'NOT every promise was kept');
process.exit(promises.areKept ? 0 : 1);
