// `make interop`: cold files are read by Apache Spark, which computes the hashes of the points again.
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { TestLink } from '../../apiserver/src/device-link/testing/test-link.ts';
import { pythonWithSpark } from '../testing/interop-programs.ts';
import { needs } from '../testing/interop-skip.ts';

describe('Apache Spark', function () {
  this.timeout(900_000);
  const folder = mkdtempSync(path.join(tmpdir(), 'kellet-spark-'));
  let link: TestLink | undefined;

  after(async () => {
    await link?.stop();
    rmSync(folder, { recursive: true });
  });

  it('reads cold files, and computes the hash of each point as it was anchored', async function () {
    const python = await needs(this, 'pyspark', pythonWithSpark);
    const settings = { KELLET_COLD_URL: pathToFileURL(folder).href };
    link = await TestLink.start(settings);
    const device = await link.device();
    const count = 200;
    const points = Array.from({ length: count }, (_, n) => ({
      device_id: device.deviceId,
      timestamp: new Date(Date.UTC(2026, 0, 1, n)).toISOString(),
      numeric_values: { temperature: n / 4 },
      string_values: { text: `° ${n}` },
    }));
    expect(await link.call(device.key, 'POST', 'telemetry', { points })).to.include({ http: 200, accepted: count });
    await link.processes.run(['cold', 'run', '--all'], settings);
    const script = path.join(import.meta.dirname, 'cold-files.py');
    const { stdout } = await promisify(execFile)(python, [script, folder, device.deviceId]);
    expect(stdout).to.contain(`points ${count} different 0`);
    expect(stdout).to.contain(`sum ${(count * (count - 1)) / 8}`);
  });
});
