// A rollout of a large image goes on while everything that it depends on is killed (kill -9), one after another, in the
// middle of the downloads; each device gets exactly the bytes of the image. Devices hash what they receive and keep none of it.
//
//   KELLET_TEST_IMAGE_BYTES     size of the image (8 MiB)
//   KELLET_TEST_IMAGE_DEVICES   how many devices (6); `make survival` runs it with 1 GiB and 200 devices
import { createHash, randomBytes } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { setTimeout as pause } from 'node:timers/promises';
import { expect } from 'chai';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl, makeFleet, makeProfile, type OtaPackage, type Rollout, unique } from '../testing/fixtures.ts';

const sizeBytes = Number(process.env['KELLET_TEST_IMAGE_BYTES'] ?? 8 * 1024 * 1024);
const count = Number(process.env['KELLET_TEST_IMAGE_DEVICES'] ?? '6');
const killed = ['apiserver', 'operator', 'postgres', 'nats', 'kube-apiserver', 'etcd'] as const;
/** A tenth of a second per megabyte, on top of two minutes. */
const longest = { timeoutMilliseconds: 120_000 + (sizeBytes * count) / 10_000, intervalMilliseconds: 500 };

/** Writes a file of random bytes for packages to fetch, in constant memory. */
async function writeImage(): Promise<{ uri: string; sha256: string }> {
  const name = `${unique('image')}.bin`;
  const hash = createHash('sha256');
  const blocks = function* () {
    for (let left = sizeBytes; left > 0;) {
      const block = randomBytes(Math.min(left, 1024 * 1024));
      left -= block.length;
      hash.update(block);
      yield block;
    }
  };
  await pipeline(blocks, createWriteStream(join(stack().artifactsFolder, name)));
  return { uri: `${stack().info.artifacts}/${name}`, sha256: hash.digest('hex') };
}

describe(`a rollout of ${sizeBytes} bytes to ${count} devices`, function () {
  this.timeout(2 * longest.timeoutMilliseconds);

  it('gives each device its bytes although everything is killed, one after another', async () => {
    const policy = { device_timeout_seconds: 86_400, max_attempts: 10 };
    const profile = await makeProfile(await admin(), { ota_policy: policy });
    const downloaded = () => fleet.devices.reduce((sum, device) => sum + device.downloadedBytes, 0);
    /** Downloads go on up to here, so that they last until the last process is killed. */
    let limit = 0;
    const received = async (): Promise<void> => {
      while (downloaded() >= limit) await pause(20);
    };
    const fleet = await makeFleet(await admin(), profile.profile_id, count, () => ({ received }));
    const { uri, sha256 } = await writeImage();
    const show = async () => (await admin()).get<Rollout>(`/api/v1/ota/rollouts/${id}`);
    const { package_id } = await (
      await admin()
    ).post<OtaPackage>('/api/v1/ota/packages', {
      ...{ name: unique('image'), type: 'fw', version: '2.0.0', artifact_uri: uri, sha256, size_bytes: sizeBytes },
    });
    const isAvailable = async () =>
      (await (await admin()).get<OtaPackage>(`/api/v1/ota/packages/${package_id}`)).status === 'available';
    await waitUntil(isAvailable, { what: 'the package', ...longest });
    const body = { package_id, target_profile_id: profile.profile_id, canary_percent: 100, name: unique('survival') };
    const { rollout_id: id, name } = await (await admin()).post<Rollout>('/api/v1/ota/rollouts', body);
    fleet.start();
    try {
      for (const [index, victim] of killed.entries()) {
        // Each at its own point, while devices download.
        const share = (sizeBytes * count) / (killed.length + 1);
        limit = (index + 1.5) * share;
        const point = (index + 1) * share;
        await waitUntil(() => downloaded() >= point, { what: `${point} bytes`, ...longest, intervalMilliseconds: 5 });
        await stack().kill(victim);
        await stack().waitReady(victim);
      }
      limit = Infinity;
      await waitUntil(async () => (await show()).status === 'completed', { what: 'the end', ...longest });
    } finally {
      await fleet.stop();
    }
    const done = await show();
    expect(done).to.include({ outcome: 'succeeded' });
    expect(done.counts).to.include({ eligible: count, scheduled: count, succeeded: count });
    for (const device of fleet.devices) {
      expect(device.firmwareVersion).to.equal('2.0.0');
      expect(device.updates.filter(({ result }) => result === 'success').map((update) => update.sha256)).to.deep.equal([
        sha256,
      ]);
    }
    expect(
      fleet.devices.some(({ updates }) => updates.some(({ interruptions }) => interruptions > 0)),
      'downloads that were interrupted',
    ).to.equal(true);
    const phase = ['get', 'otaro', name, '-o', 'jsonpath={.status.phase}'];
    await waitUntil(async () => (await (await kubectl()).run(phase)) === 'Completed', { what: 'status', ...longest });
  });
});
