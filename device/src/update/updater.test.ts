import { createHash, generateKeyPairSync, randomBytes, sign } from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { DeviceError, unavailable } from '../errors.ts';
import type { AssignedPackage, OtaReport } from '../messages.ts';
import type { Transport } from '../transports/transport.ts';
import { FileSlots, startImage } from './file-slots.ts';
import { activeVersion } from './slots.ts';
import { downloadArtifact, Updater } from './updater.ts';

const image = randomBytes(700_000);
const digest = createHash('sha256').update(image).digest();
const keys = generateKeyPairSync('ed25519');
const signingKeys = [keys.publicKey.export({ type: 'spki', format: 'pem' }).toString()];

/** The platform, with one assigned package. Chunks and reports fail as `fail` decides. */
class Platform {
  readonly offsets: number[] = [];
  readonly reports: OtaReport[] = [];
  assigned: AssignedPackage | undefined;
  fail: (what: 'chunk' | 'report', attempt: number) => Error | undefined = () => undefined;
  private attempts = 0;

  constructor(version: string) {
    this.assigned = {
      ...{ package_id: `p-${version}`, version, size_bytes: image.length, sha256: digest.toString('hex') },
      ...{ rollout_id: `r-${version}`, signature: sign(null, digest, keys.privateKey).toString('base64') },
    };
  }

  get transport(): Transport {
    return {
      assignedPackage: async () => this.assigned,
      chunk: async (_id: string, offset: number, length: number) => {
        const error = this.fail('chunk', ++this.attempts);
        if (error) throw error;
        this.offsets.push(offset);
        return image.subarray(offset, offset + length);
      },
      report: async (report: OtaReport) => {
        const error = this.fail('report', ++this.attempts);
        if (error) throw error;
        if (report.status) this.reports.push(report);
      },
    } as unknown as Transport;
  }
}

describe('updates', () => {
  let folder: string;
  beforeEach(() => (folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kellet-slots-'))));
  afterEach(() => fs.rmSync(folder, { recursive: true }));

  /** A device that has just started. */
  const start = (platform: Platform, signal = new AbortController().signal) => {
    const store = new FileSlots(folder, { factoryVersion: '1.0', signingKeys });
    const backoff = { firstMilliseconds: 1, longestMilliseconds: 1 };
    return { store, updater: new Updater(platform.transport, store, { backoff, signal }) };
  };
  const startedImage = (): string | undefined => {
    const file = startImage(folder);
    return file && path.basename(file);
  };

  it('install an image, and confirm it after the restart', async () => {
    const platform = new Platform('1.1');
    expect(startedImage()).to.equal(undefined);
    expect(await start(platform).updater.update()).to.equal('installed');
    expect(platform.reports).to.deep.equal([]);
    expect(startedImage()).to.equal('slot-b.image');
    expect(fs.readFileSync(path.join(folder, 'slot-b.image')).equals(image)).to.equal(true);
    const { store, updater } = start(platform);
    await updater.confirm();
    await updater.report();
    expect(platform.reports).to.deep.equal([
      { rollout_id: 'r-1.1', status: 'success', firmware_version: '1.1', error: '' },
    ]);
    expect([activeVersion(store.state), store.state.result]).to.deep.equal(['1.1', undefined]);
    // The command again, and the next update into the other slot.
    expect(await updater.update()).to.equal('reported');
    expect(await start(new Platform('1.2')).updater.update()).to.equal('installed');
    expect(startedImage()).to.equal('slot-a.image');
  });

  it('resume a download after lost connections and after a crash', async () => {
    const platform = new Platform('1.1');
    const crash = new AbortController();
    platform.fail = (_what, attempt) => {
      if (attempt === 2) return unavailable('lost');
      if (attempt === 4) crash.abort(new Error('crashed'));
      return undefined;
    };
    const crashed = await start(platform, crash.signal)
      .updater.update()
      .catch((error: Error) => error.message);
    expect(crashed).to.equal('crashed');
    // The power went in the middle of a write.
    const file = path.join(folder, 'slot-b.image');
    const { size } = fs.statSync(file);
    expect(size).to.be.at.least(131_072);
    fs.appendFileSync(file, image.subarray(size, size + 100));
    expect(startedImage(), 'unfinished images never run').to.equal(undefined);
    const before = platform.offsets.length;
    expect(await start(platform).updater.update()).to.equal('installed');
    expect(platform.offsets[before]).to.equal(size + 100);
    expect(startedImage()).to.equal('slot-b.image');
  });

  const refusals: [string, Partial<AssignedPackage>, string][] = [
    ['another checksum', { sha256: '0'.repeat(64) }, 'checksum mismatch'],
    ['no signature', { signature: '' }, 'signature missing'],
    ['the signature of another key', { signature: Buffer.alloc(64).toString('base64') }, 'signature mismatch'],
  ];
  for (const [what, fields, error] of refusals) {
    it(`refuse an image with ${what}`, async () => {
      const platform = new Platform('1.1');
      Object.assign(platform.assigned!, fields);
      const { updater } = start(platform);
      expect(await updater.update()).to.equal('reported');
      expect(platform.reports).to.deep.equal([
        { rollout_id: 'r-1.1', status: 'failure', firmware_version: '1.0', error },
      ]);
      expect(fs.existsSync(path.join(folder, 'slot-b.image'))).to.equal(false);
      expect(startedImage()).to.equal(undefined);
    });
  }

  it('roll back an image that is not healthy, and report it until the platform knows', async () => {
    const platform = new Platform('1.1');
    await start(platform).updater.update();
    expect(startedImage()).to.equal('slot-b.image');
    await start(platform).updater.rollBack('no sensor');
    expect(startedImage()).to.equal(undefined);
    const crash = new AbortController();
    platform.fail = () => {
      crash.abort(new Error('crashed'));
      return unavailable('away');
    };
    await start(platform, crash.signal)
      .updater.report()
      .catch(() => undefined);
    platform.fail = () => undefined;
    const { store, updater } = start(platform);
    await updater.report();
    await updater.report();
    expect(platform.reports).to.deep.equal([
      { rollout_id: 'r-1.1', status: 'failure', firmware_version: '1.0', error: 'no sensor' },
    ]);
    expect(store.state.result).to.equal(undefined);
  });

  it('do not repeat a failed trial when its command is delivered again', async () => {
    const platform = new Platform('1.1');
    await start(platform).updater.update();
    expect(startedImage()).to.equal('slot-b.image');
    await start(platform).updater.rollBack('no sensor');
    const { store, updater } = start(platform);
    expect(await updater.update()).to.equal('left');
    expect(platform.reports).to.have.length(1);
    expect(store.state.trial).to.equal(undefined);

    // The result is known only after the command has arrived.
    const trial = new Platform('1.2');
    await start(trial).updater.update();
    const late = start(trial);
    const updating = late.updater.update();
    await late.updater.rollBack('no sensor');
    expect(await updating).to.equal('left');
    expect(late.store.state.trial).to.equal(undefined);
  });

  it('roll back an image that crashes or hangs before it can decide', async () => {
    const platform = new Platform('1.1');
    await start(platform).updater.update();
    const runs = Array.from({ length: 5 }, startedImage);
    expect(runs).to.deep.equal(['slot-b.image', 'slot-b.image', 'slot-b.image', undefined, undefined]);
    await start(platform).updater.report();
    expect(platform.reports[0]).to.include({ status: 'failure', error: 'not confirmed healthy after 3 starts' });
  });

  it('do not need reports of progress', async () => {
    const platform = new Platform('1.1');
    platform.fail = (what) => (what === 'report' ? unavailable('away') : undefined);
    expect(await start(platform).updater.update()).to.equal('installed');
  });

  it('report progress once for each percent, however large the image is', async () => {
    const percents: number[] = [];
    const transport = {
      chunk: async (_id: string, _offset: number, length: number) => image.subarray(0, length),
      report: async ({ progress_percent }: OtaReport) => void percents.push(progress_percent!),
    } as unknown as Transport;
    const download = async (size_bytes: number) => {
      const assigned = { ...new Platform('1.1').assigned!, size_bytes };
      const insisting = {
        backoff: { firstMilliseconds: 1, longestMilliseconds: 1 },
        signal: new AbortController().signal,
      };
      percents.length = 0;
      await downloadArtifact({ transport, assigned, present: 0, append: async () => undefined, insisting });
      return [...percents];
    };
    expect(await download(1_000_000_000)).to.deep.equal(Array.from({ length: 99 }, (_, index) => index + 1));
    expect(await download(2_000_000)).to.deep.equal([26, 52, 78]);
  });

  it('do not install a package that is withdrawn during the download', async () => {
    const platform = new Platform('1.1');
    platform.fail = (_what, attempt) =>
      attempt > 2 ? new DeviceError('PERMISSION_DENIED', 'not assigned') : undefined;
    expect(await start(platform).updater.update()).to.equal('left');
    platform.assigned = undefined;
    expect(await start(platform).updater.update()).to.equal('left');
    expect(platform.reports).to.deep.equal([]);
  });

  it('start the factory image if the state is damaged', async () => {
    await start(new Platform('1.1')).updater.update();
    for (const damage of ['', 'null', '{"active":"b","images":{}}', '\0\0']) {
      fs.writeFileSync(path.join(folder, 'slots.json'), damage);
      expect(startedImage()).to.equal(undefined);
      expect(activeVersion(start(new Platform('1.1')).store.state)).to.equal('1.0');
    }
  });
});
