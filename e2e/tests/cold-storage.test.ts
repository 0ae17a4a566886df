// Tests cold storage in the whole system: a command turns a device's points cold while the data plane runs, and responses of
// REST do not change, including proof bundles.
import { readdir } from 'node:fs/promises';
import { expect } from 'chai';
import { RestError } from '../../dev/clients/rest.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { coldFolder, runCold } from '../testing/cold-run.ts';
import { admin, makeDevice } from '../testing/fixtures.ts';

interface Point {
  timestamp: string;
  data_hash: string;
  anchored: boolean;
}

describe('cold storage', () => {
  it('turns points cold with a command, and REST responds as before', async () => {
    const rest = await admin();
    const device = await makeDevice(rest);
    const readings = replay(weatherStations(), 0, 50);
    expect(await device.send(readings)).to.include({ accepted: 50 });
    const history = async () =>
      (await rest.get<{ points: Point[] }>(`/api/v1/telemetry/${device.deviceId}`, { page_size: 1000 })).points;
    await waitUntil(async () => (await history()).every(({ anchored }) => anchored), {
      what: 'proofs',
      timeoutMilliseconds: 90_000,
    });
    const before = await history();
    const bundle = async () => {
      const path = `/api/v1/verify/hash/${before[7]!.data_hash}?include_bundle=true`;
      const { bundle: found } = await rest.get<{ bundle: Record<string, unknown> }>(path);
      return { ...found, block_header_chain: undefined, confirmation_depth: undefined };
    };
    const bundleBefore = await bundle();
    const latest = () => rest.get(`/api/v1/telemetry/${device.deviceId}/latest`);
    const latestBefore = await latest();
    expect(await runCold()).to.match(/^\d+ points turned cold/);
    const files = await readdir(coldFolder, { recursive: true });
    expect(
      files.filter((name) => /^tenant_id=[a-z0-9-]+\/date=[-\d]+\/[-0-9a-f]+\.parquet$/.test(name)),
    ).not.to.deep.equal([]);
    expect(await history()).to.deep.equal(before);
    expect(await bundle()).to.deep.equal(bundleBefore);
    expect(await latest()).to.deep.equal(latestBefore);
    // New points go to a segment, and both are read as one.
    const later = replay(weatherStations(), 50, 10);
    await device.send(later);
    expect(await history()).to.have.length(60);
  });

  it('limits retention by tenant', async () => {
    const rest = await admin();
    const device = await makeDevice(rest);
    const day = 86_400_000;
    const reading = (age: number) => ({
      ...replay(weatherStations(), 0, 1)[0]!,
      timestamp: new Date(Date.now() - age * day).toISOString(),
    });
    await device.send([reading(4000), reading(1)]);
    const length = async () =>
      (await rest.get<{ points: Point[] }>(`/api/v1/telemetry/${device.deviceId}`)).points.length;
    expect(await length()).to.equal(2);
    const patch = (days: number) => rest.patch<{ retention_days: number }>('/api/v1/tenant', { retention_days: days });
    expect(await patch(3650)).to.include({ retention_days: 3650 });
    try {
      expect(await length()).to.equal(1);
      const refused = await patch(36_501).catch((error: unknown) => error);
      expect(refused).to.be.instanceOf(RestError).and.have.property('code', 'INVALID_ARGUMENT');
    } finally {
      await patch(0);
    }
  });
});
