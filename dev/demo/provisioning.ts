// a and b: manifests become resources, and devices claim their identities.
import { cp, readdir, readFile, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { checkout } from '../stack/paths.ts';
import { fleetSize, type Scene } from './scene.ts';

/** Artifact server in the manifests of examples/. */
const artifactsInExamples = 'http://127.0.0.1:8082';

/** Returns a folder of manifests, or a copy with the actual artifact server if its port differs. */
async function manifestsFolder(scene: Scene, name: string): Promise<string> {
  const source = join(checkout, 'examples', name);
  if (scene.artifacts === artifactsInExamples) return source;
  const copy = join(scene.folder, name);
  await cp(source, copy, { recursive: true });
  for (const file of await readdir(copy)) {
    const text = await readFile(join(copy, file), 'utf8');
    await writeFile(join(copy, file), text.replaceAll(artifactsInExamples, scene.artifacts));
  }
  scene.terminal.say(`   port 8082 is taken: using a copy of examples/${name}/ with ${scene.artifacts}`);
  return copy;
}

/** a. `kubectl apply -f examples/quickstart/`: all resources become Ready. */
export async function applyQuickstart(scene: Scene): Promise<void> {
  const { kubectl, terminal, promises } = scene;
  terminal.chapter('a', 'A profile, a template and two firmware packages');
  const folder = await manifestsFolder(scene, 'quickstart');
  terminal.say(`   $ kubectl apply -n ${kubectl.namespace} -f ${relative(checkout, folder)}/`);
  terminal.print(await kubectl.run(['apply', '-f', folder]));
  const kinds = ['deviceprofiles', 'provisioningtemplates', 'otapackages'];
  await kubectl.run(['wait', '--for=condition=Ready', '--all', '--timeout=60s', kinds.join(',')]);
  const { items } = await kubectl.json<{ items: unknown[] }>(['get', kinds.join(',')]);
  promises.observe('manifests', items.length === 4, `${items.length} of 4 Ready`);
  terminal.say(`   ${items.length} resources are Ready`);
  const secret = ['get', 'secret', 'weather-station-provision-key'];
  const { data } = await kubectl.json<{ data: { provisionKey: string } }>(secret);
  scene.provisionKey = Buffer.from(data.provisionKey, 'base64').toString();
}

/** b. The fleet claims its identities; one device claims again. */
export async function claimIdentities(scene: Scene): Promise<void> {
  const { fleet, terminal, promises, provisionKey } = scene;
  terminal.chapter('b', `${fleetSize} devices claim their identities`);
  const identities = await fleet.claim(provisionKey, (count) => terminal.count('claimed', count, fleetSize));
  const ids = new Set(identities.map((response) => response.device_id));
  const keys = new Set(identities.map((response) => response.api_key).filter((key) => key.startsWith('sk_live_')));
  const isEach = ids.size === fleetSize && keys.size === fleetSize;
  promises.observe('claims', isEach, `${ids.size} devices, ${keys.size} keys`);

  const device = fleet.devices[0]!;
  const again = await device.claim(provisionKey);
  const isSame = again.device_id === identities[0]!.device_id && again.api_key === '';
  promises.observe('repeatedClaim', isSame, `same device_id, api_key ${JSON.stringify(again.api_key)}`);
  terminal.say(`   ${device.name} claims again: same device_id, api_key ${JSON.stringify(again.api_key)}`);
}
