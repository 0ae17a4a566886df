// Tests cold storage in the whole system: a command turns a device's points cold while the data plane runs, and responses of
// REST do not change, including proof bundles.
import { execFile } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { RestError } from '../../dev/clients/rest.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import { checkout } from '../../dev/stack/paths.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice } from '../testing/fixtures.ts';

const coldFolder = join(checkout, '.kellet/test/cold');

interface Point {
  timestamp: string;
  data_hash: string;
  anchored: boolean;
}

describe('cold storage', () => {
  const coldRun = async (): Promise<string> => {
    const { databaseUrl, natsUrl } = stack().info;
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [join(checkout, 'apiserver/src/main.ts'), 'cold', 'run', '--all'],
      {
        env: {
          PATH: process.env['PATH'],
          KELLET_DATABASE_URL: databaseUrl,
          KELLET_NATS_URL: natsUrl,
          KELLET_CONTROL_SECRET: 'unused'.repeat(6),
          KELLET_JWT_PRIVATE_KEY: 'unused',
          KELLET_CALLBACK_HMAC_SECRET: 'unused',
          KELLET_COLD_URL: pathToFileURL(coldFolder).href,
        },
      },
    );
    return stdout;
  };

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
    expect(await coldRun()).to.match(/^\d+ points turned cold/);
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
