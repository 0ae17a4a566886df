// A rollout of a large image goes on while everything that it depends on is killed (kill -9), one after another, in the
// middle of the downloads; each device gets exactly the bytes of the image. Devices hash what they receive and keep none of it.
//
//   KELLET_TEST_IMAGE_BYTES     size of the image (8 MiB)
//   KELLET_TEST_IMAGE_DEVICES   how many devices (6)
//   KELLET_TEST_IMAGE_REPLICAS  how many API servers they share (1); `make survival` runs it with 1 GiB, 200 devices, 2 servers
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
/** API servers besides the first. */
const replicas = Array.from(
  { length: Number(process.env['KELLET_TEST_IMAGE_REPLICAS'] ?? '1') - 1 },
  (_, index) => `target-replica-${index + 2}` as const,
);
const killed = ['apiserver', ...replicas, 'operator', 'postgres', 'nats', 'kube-apiserver', 'etcd'] as const;
/** Long enough for whatever is not a download. */
const longest = { timeoutMilliseconds: 120_000 + sizeBytes / 4_000, intervalMilliseconds: 500 };
/** How long no device may receive anything, in milliseconds. */
const longestStall = 180_000;
const reportSeconds = 30;

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

/** Lets devices download up to a number of bytes in all, and waits for them. */
class Downloads {
  private open = Promise.withResolvers<void>();
  private limit = 0;
  private total = 0;

  /** A device has received bytes. Resolves when it may go on. */
  async received(bytes: number): Promise<void> {
    this.total += bytes;
    while (this.total >= this.limit) await this.open.promise;
  }

  allow(limit: number): void {
    this.limit = limit;
    this.open.resolve();
    this.open = Promise.withResolvers();
  }

  /** Resolves once this many bytes have arrived. Throws if none arrive for too long. */
  async reach(bytes: number): Promise<void> {
    for (let last = { total: this.total, at: performance.now() }; this.total < bytes; await pause(5)) {
      if (this.total > last.total) last = { total: this.total, at: performance.now() };
      if (performance.now() - last.at > longestStall) throw new Error(`nothing has arrived after ${this.total} bytes`);
    }
  }

  /** Prints the progress of a long run until the signal aborts. */
  async print(signal: AbortSignal): Promise<void> {
    const size = sizeBytes * count;
    for (let last = this.total; ; last = this.total) {
      await pause(reportSeconds * 1000, undefined, { signal }).catch(() => undefined);
      if (signal.aborted) return;
      const rate = (this.total - last) / reportSeconds / 1e6;
      console.error(`    ${(this.total / 1e9).toFixed(1)} of ${(size / 1e9).toFixed(1)} GB, ${rate.toFixed(0)} MB/s`);
    }
  }
}

describe(`a rollout of ${sizeBytes} bytes to ${count} devices`, function () {
  // A run ends by itself when nothing arrives any more.
  this.timeout(0);

  it('gives each device its bytes although everything is killed, one after another', async () => {
    const policy = { device_timeout_seconds: 86_400, max_attempts: 10 };
    const profile = await makeProfile(await admin(), { ota_policy: policy });
    const downloads = new Downloads();
    const bases = [stack().info.rest];
    for (const name of replicas) bases.push((await stack().startTarget(name, 'all')).rest);
    const fleet = await makeFleet(await admin(), profile.profile_id, count, (index) => ({
      base: bases[index % bases.length]!,
      received: (bytes: number) => downloads.received(bytes),
    }));
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
    const printing = new AbortController();
    void downloads.print(printing.signal);
    fleet.start();
    try {
      for (const [index, victim] of killed.entries()) {
        // Each at its own point, while devices download: they pause only if it takes too long to return.
        const share = (sizeBytes * count) / (killed.length + 1);
        downloads.allow((index + 1.5) * share);
        await downloads.reach((index + 1) * share);
        await stack().kill(victim);
        await stack().waitReady(victim, longest.timeoutMilliseconds);
      }
      downloads.allow(Infinity);
      await downloads.reach(sizeBytes * count);
      await waitUntil(async () => (await show()).status === 'completed', { what: 'the end', ...longest });
    } finally {
      printing.abort();
      await fleet.stop();
      for (const name of replicas) await stack().stopProcess(name);
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
