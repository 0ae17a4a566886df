// From a point to an independently verifiable proof.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { canonicalPayload, dataHash } from '@kellet/verify';
import { expect } from 'chai';
import { fetchHeadersFile, verifyOffline } from '../../dev/clients/verify-command.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice } from '../testing/fixtures.ts';

interface Bundle {
  canonical_hash_inputs: { payload: string; timestamp: number; tenant_id: string; device_id: string };
  merkle_path: { hash: string; is_right?: boolean }[];
  block_header_chain: { height: number }[];
  leaf_index?: number;
  confirmation_depth: number;
}

interface Proof {
  data_hash: string;
  batch_id: string;
  txid: string;
  block_height: number;
  merkle_root: string;
  tenant_id: string;
  device_id: string;
  bundle?: Bundle;
}

interface Batch {
  batch_id: string;
  status: string;
  count: number;
  txid?: string;
}

const readings = replay(weatherStations(), 3, 20);

describe('proofs', () => {
  let folder: string;
  let device: SimulatedDevice;
  let hashes: string[];
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kellet-proofs-'));
    device = await makeDevice(await admin());
    await device.send(readings);
    const path = `/api/v1/telemetry/${device.deviceId}`;
    const { points } = await (await admin()).get<{ points: { data_hash: string }[] }>(path, { page_size: 100 });
    hashes = points.map(({ data_hash }) => data_hash);
  });
  after(() => rm(folder, { recursive: true, force: true }));

  const proofOf =
    (hash: string, query = {}) =>
    async () => {
      const response = await (await admin()).send<Proof>('GET', `/api/v1/verify/hash/${hash}`, { query });
      return response.status === 200 ? response.body : undefined;
    };
  const waitProof = (hash: string, query = {}) =>
    waitUntil(proofOf(hash, query), { what: `proof of ${hash}`, timeoutMilliseconds: 30_000 });

  it('hashes a point as documented', () => {
    const { tenant } = stack().info;
    for (const [index, { timestamp, numeric_values, string_values }] of readings.entries()) {
      const payload = canonicalPayload(numeric_values, string_values);
      const inputs = {
        tenantId: tenant,
        deviceId: device.deviceId,
        timestampSeconds: Date.parse(timestamp) / 1000,
        payload,
      };
      expect(dataHash(inputs)).to.equal(hashes[index]);
    }
  });

  it('reports that a hash without a proof may be pending or nonexistent', async () => {
    const response = await (
      await admin()
    ).send<{ code: string; message: string }>('GET', `/api/v1/verify/hash/${'ab'.repeat(32)}`);
    expect({ status: response.status, code: response.body.code }).to.deep.equal({ status: 404, code: 'NOT_FOUND' });
    expect(response.body.message).to.match(/no blockchain proof.*data hash.*pending or nonexistent/i);
  });

  it('proves every point by its hash and by its values', async () => {
    for (const [index, hash] of hashes.entries()) {
      const proof = await waitProof(hash);
      expect(proof).to.include({ data_hash: hash, tenant_id: stack().info.tenant, device_id: device.deviceId });
      const { timestamp, numeric_values, string_values } = readings[index]!;
      const body = { device_id: device.deviceId, timestamp, numeric_values, string_values };
      const raw = await (
        await admin()
      ).post<{ verified: boolean; merkle_root: string; txid: string }>('/api/v1/verify/raw', body);
      expect(raw).to.include({ verified: true, merkle_root: proof.merkle_root, txid: proof.txid });
    }
  });

  it('has no proof for values with a different last digit', async () => {
    const { timestamp, numeric_values, string_values } = readings[0]!;
    const forged = { ...numeric_values, wind: numeric_values['wind']! + 0.1 };
    const body = { device_id: device.deviceId, timestamp, numeric_values: forged, string_values };
    expect((await (await admin()).send('POST', '/api/v1/verify/raw', { body })).status).to.equal(404);
  });

  it('returns the batch with its state and leaves in order, and lists proofs', async () => {
    const proof = await waitProof(hashes[0]!);
    const batch = await (await admin()).get<Batch>(`/api/v1/anchors/batches/${proof.batch_id}`);
    expect(batch).to.include({ status: 'confirmed', txid: proof.txid });
    const leaves = await (
      await admin()
    ).list<string>(`/api/v1/verify/batch/${proof.batch_id}`, 'leaves', { page_size: 7 });
    expect(leaves).to.have.length(batch.count);
    expect(leaves).to.include(hashes[0]);
    const batches = await (await admin()).list<Batch>('/api/v1/anchors', 'batches', { status: 'confirmed' });
    expect(batches.map(({ batch_id }) => batch_id)).to.include(proof.batch_id);
    await Promise.all(hashes.map((hash) => waitProof(hash)));
    const query = { device_id: device.deviceId, limit: 7, offset: 14 };
    const page = await (await admin()).get<{ proofs: Proof[]; total: number }>('/api/v1/verify/proofs', query);
    expect({ total: page.total, shown: page.proofs.length }).to.deep.equal({ total: 20, shown: 6 });
  });

  it('returns a bundle that kellet-verify proves offline, and refutes if a digit or leaf is changed', async () => {
    const { bundle } = await waitProof(hashes[5]!, { include_bundle: true });
    const write = async (name: string, value: unknown) => {
      const path = join(folder, name);
      await writeFile(path, typeof value === 'string' ? value : JSON.stringify(value));
      return path;
    };
    const from = bundle!.block_header_chain[0]!.height;
    const headers = await write('headers.txt', await fetchHeadersFile(stack().info.devchain!, from));
    const sound = await verifyOffline(await write('bundle.json', bundle), '--headers', headers);
    expect(sound.code, sound.stdout + sound.stderr).to.equal(0);

    const inputs = bundle!.canonical_hash_inputs;
    const forgeries = {
      'another digit': {
        ...inputs,
        payload: inputs.payload.replace(/(\d)"?}/, (text, digit: string) =>
          text.replace(digit, String((Number(digit) + 1) % 10)),
        ),
      },
      'another second': { ...inputs, timestamp: inputs.timestamp + 1 },
      'another device': { ...inputs, device_id: 'another' },
      'another tenant': { ...inputs, tenant_id: stack().info.other.tenant },
    };
    for (const [what, canonical_hash_inputs] of Object.entries(forgeries)) {
      const forged = await verifyOffline(
        await write('forged.json', { ...bundle, canonical_hash_inputs }),
        '--headers',
        headers,
      );
      expect(forged.code, what).to.equal(1);
    }
    const unpinned = await verifyOffline(join(folder, 'bundle.json'));
    expect(unpinned.code, 'without a pin').to.equal(3);
  });

  it('seals a batch at 1000 points without waiting for the timeout', async () => {
    const other = await makeDevice(await admin());
    const many = replay(weatherStations(), 0, 1100);
    expect(await other.send(many)).to.include({ accepted: 1100 });
    const path = `/api/v1/telemetry/${other.deviceId}`;
    const points = await (await admin()).list<{ data_hash: string }>(path, 'points', { page_size: 1000 });
    const [first, last] = [await waitProof(points[0]!.data_hash), await waitProof(points.at(-1)!.data_hash)];
    expect(first.batch_id).not.to.equal(last.batch_id);
    const batch = await (await admin()).get<Batch>(`/api/v1/anchors/batches/${first.batch_id}`);
    expect(batch.count).to.be.at.most(1000);
  });

  it('handles lost, late and duplicate callbacks', async () => {
    const devchain = stack().info.devchain!;
    const faults = (body: object) => fetch(`${devchain}/dev/faults`, { method: 'POST', body: JSON.stringify(body) });
    await faults({ drop_callbacks: true });
    try {
      const lost = await makeDevice(await admin());
      await lost.send(readings.slice(0, 2));
      const { points } = await (
        await admin()
      ).get<{ points: { data_hash: string }[] }>(`/api/v1/telemetry/${lost.deviceId}`);
      await waitProof(points[0]!.data_hash);
    } finally {
      await fetch(`${devchain}/dev/faults`, { method: 'DELETE' });
    }
    await faults({ duplicate_callbacks: 2, delay_callbacks_ms: 300 });
    try {
      const doubled = await makeDevice(await admin());
      await doubled.send(readings.slice(0, 2));
      const { points } = await (
        await admin()
      ).get<{ points: { data_hash: string }[] }>(`/api/v1/telemetry/${doubled.deviceId}`);
      await waitProof(points[1]!.data_hash);
    } finally {
      await fetch(`${devchain}/dev/faults`, { method: 'DELETE' });
    }
  });
});
