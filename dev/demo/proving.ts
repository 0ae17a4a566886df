// d: batches are anchored, and a point is verified over REST and offline.
import { mkdir, writeFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import type { Schema } from '@kellet/client';
import { fetchHeadersFile, verifyOffline } from '../clients/verify-command.ts';
import { checkout } from '../stack/paths.ts';
import { waitUntil } from '../stack/wait.ts';
import { readHistory } from './measuring.ts';
import { fleetSize, readingsPerDevice, type Scene } from './scene.ts';

const listBatches = (scene: Scene) => scene.admin.list<Schema<'AnchorBatch'>>('/api/v1/anchors', 'batches');
const sum = (batches: readonly Schema<'AnchorBatch'>[]) => batches.reduce((total, { count }) => total + count, 0);
const isProven = ({ status }: Schema<'AnchorBatch'>) => status === 'confirmed';

/** Waits until this many points are proven. Returns their batches. */
async function waitProven(scene: Scene, points: number, seconds: number): Promise<Schema<'AnchorBatch'>[]> {
  let batches: Schema<'AnchorBatch'>[] = [];
  const check = async () => {
    batches = (await listBatches(scene)).filter(isProven);
    scene.terminal.count('proven', Math.min(sum(batches), points), points);
    return sum(batches) >= points;
  };
  await waitUntil(check, {
    what: 'proofs',
    timeoutMilliseconds: seconds * 1000,
    intervalMilliseconds: 1000,
  }).catch(() => undefined);
  return batches;
}

/** d. Full batches are anchored, and one point is verified in every available way. */
export async function prove(scene: Scene): Promise<void> {
  const { terminal, promises } = scene;
  const full = Math.floor((fleetSize * readingsPerDevice) / 1000) * 1000;
  terminal.chapter('d', 'Batches are sealed, anchored, mined and proven');
  const batches = await waitProven(scene, full, 40);
  const transactions = new Set(batches.map(({ txid }) => txid));
  const isAnchored = sum(batches) >= full && transactions.size === batches.length;
  const blocks = new Set(batches.map(({ block_height }) => block_height).sort());
  const what = `${sum(batches).toLocaleString('en')} points in ${batches.length} transactions, in block ${[...blocks].join(', ')}`;
  promises.observe('anchored', isAnchored, what);
  terminal.say(`   ${what}`);

  const bundlePath = await verifyOverRest(scene);
  await verifyBundle(scene, bundlePath);
}

/** Verifies a point by its hash and by its values. Writes its bundle and returns the path. */
async function verifyOverRest(scene: Scene): Promise<string> {
  const { admin, fleet, promises, terminal } = scene;
  const { deviceId } = fleet.devices[0]!;
  const point = await waitUntil(
    async () => (await readHistory(scene, deviceId)).filter(({ anchored }) => anchored).at(-1),
    { what: 'an anchored point', timeoutMilliseconds: 5000, intervalMilliseconds: 500 },
  );
  const { timestamp, numeric_values, string_values, data_hash } = point;
  const query = { include_bundle: true };
  const byHash = await admin.get<{ txid: string; bundle: object }>(`/api/v1/verify/hash/${data_hash}`, query);
  const values = { device_id: deviceId, timestamp, numeric_values, string_values };
  const byValues = await admin.post<{ verified?: boolean; txid: string }>('/api/v1/verify/raw', values);
  const isVerified = byValues.verified === true && byValues.txid === byHash.txid;
  promises.observe('verified', isVerified, `verified ${byValues.verified}, transaction ${byHash.txid.slice(0, 12)}…`);

  await mkdir(scene.folder, { recursive: true });
  const path = join(scene.folder, 'bundle.json');
  await writeFile(path, `${JSON.stringify(byHash.bundle, undefined, 2)}\n`);
  terminal.say(`   ${timestamp.slice(0, 10)} ${JSON.stringify(numeric_values)}: ${relative(checkout, path)}`);
  return path;
}

/** Changes the first digit of the anchored values. */
function forge(bundle: { canonical_hash_inputs: { payload: string } }): string {
  const { payload } = bundle.canonical_hash_inputs;
  const forged = payload.replace(/\d/, (digit) => (digit === '9' ? '8' : String(Number(digit) + 1)));
  return JSON.stringify({ ...bundle, canonical_hash_inputs: { ...bundle.canonical_hash_inputs, payload: forged } });
}

/** Verifies the bundle offline with previously fetched headers, and checks that a forged one is refuted. */
async function verifyBundle(scene: Scene, path: string): Promise<void> {
  const { terminal, promises, headersUrl } = scene;
  const bundle = (await import(path, { with: { type: 'json' } })) as {
    default: { canonical_hash_inputs: { payload: string }; block_header_chain: { height: number }[] };
  };
  const headers = join(scene.folder, 'headers.txt');
  await writeFile(headers, await fetchHeadersFile(headersUrl, bundle.default.block_header_chain[0]!.height));
  const shortHeaders = relative(checkout, headers);
  const shown = (file: string) => `kellet-verify ${relative(checkout, file)} --headers ${shortHeaders}`;

  terminal.say(`   $ ${shown(path)}`);
  const sound = await verifyOffline(path, '--headers', shortHeaders);
  terminal.print(sound.stdout || sound.stderr);
  promises.observe('offline', sound.code === 0, `exit code ${sound.code}`);

  const forgedPath = join(scene.folder, 'forged.json');
  await writeFile(forgedPath, forge(bundle.default));
  terminal.say(`   one digit of the values is changed: $ ${shown(forgedPath)}`);
  const forged = await verifyOffline(forgedPath, '--headers', shortHeaders);
  const lastLine = (forged.stdout || forged.stderr).trim().split('\n').at(-1) ?? '';
  terminal.print(lastLine);
  promises.observe('refuted', forged.code === 1, `exit code ${forged.code}: ${lastLine}`);
}

/** Returns the number of results that devices have reported on their updates: each is anchored like a point. */
async function countResults({ admin }: Scene): Promise<number> {
  const rollouts = await admin.list<Schema<'Rollout'>>('/api/v1/ota/rollouts', 'rollouts');
  const results = await Promise.all(
    rollouts.map(({ rollout_id: id }) => admin.list(`/api/v1/verify/rollouts/${id}`, 'results')),
  );
  return results.flat().length;
}

/** Returns the number of proofs of the fleet's points and results. The tenant's audit log has proofs of its own. */
async function countProofs({ admin, fleet }: Scene): Promise<number> {
  const totals = await Promise.all(
    fleet.devices.map(async ({ deviceId: device_id }) => {
      const { total } = await admin.get<{ total: number }>('/api/v1/verify/proofs', { limit: 1, device_id });
      return total;
    }),
  );
  return totals.reduce((sum, total) => sum + total, 0);
}

/** At the end, the partial batch has been sealed by timeout, and every accepted point and every result has a proof. */
export async function proveTheRest(scene: Scene): Promise<void> {
  const { terminal, promises } = scene;
  const wanted = fleetSize * readingsPerDevice + (await countResults(scene));
  terminal.say('   the last batch was not full: it is sealed after 30 seconds');
  let proofs = 0;
  const check = async () => {
    proofs = await countProofs(scene);
    terminal.count('proven', proofs, wanted);
    return proofs >= wanted;
  };
  await waitUntil(check, { what: 'proofs', timeoutMilliseconds: 60_000, intervalMilliseconds: 1000 }).catch(
    () => undefined,
  );
  promises.observe('proven', proofs === wanted, `${proofs.toLocaleString('en')} proofs`);
}
