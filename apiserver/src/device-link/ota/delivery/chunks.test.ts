// Chunks for many devices at once, on a real database: each gets its own package alone, until it is taken away.
import { generateKeyPairSync } from 'node:crypto';
import { expect } from 'chai';
import { chunkBytes } from '../artifacts/artifact-store.ts';
import { openRolloutFixture, refusal, type RolloutFixture } from '../testing/rollout-fixture.ts';

describe('chunks', () => {
  let fixture: RolloutFixture;
  let sensor: string;
  let two: string;
  let three: string;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    sensor = await fixture.profile('sensor');
    [{ package_id: two }] = (await fixture.rows(`SELECT package_id FROM ota_packages WHERE name = 'two'`)) as [
      { package_id: string },
    ];
    three = await fixture.package('three', '3.0.0');
  });
  afterEach(() => fixture.close());

  it('serve a device while another one asks for hundreds of tiny pieces', async () => {
    const [hostile, honest] = (await fixture.make(sensor, 2)) as [string, string];
    await fixture.start({ canaryPercent: 100 });
    // Both have begun, so that none waits for its assignment to take effect.
    for (const device of [hostile, honest]) await fixture.chunk(device, two);
    let served = 0;
    const outcomes = Array.from({ length: 500 }, async (_, index) => {
      const outcome = await refusal(fixture.chunk(hostile, two, index, 1));
      if (outcome === 'nothing') served += 1;
      return outcome;
    });
    // Begun last, so a first-come, first-served queue would serve it last.
    expect((await fixture.chunk(honest, two)).length).to.equal(chunkBytes);
    expect(served, 'served to the other device meanwhile').to.be.below(60);
    const all = await Promise.all(outcomes);
    expect(all.filter((outcome) => outcome === 'nothing')).to.have.length(68);
    expect(all.filter((outcome) => outcome === 'RESOURCE_EXHAUSTED')).to.have.length(432);
    expect((await fixture.chunk(hostile, two, 0, 1)).length, 'afterwards').to.equal(1);
  });

  it('go to each device of a crowd by its own assignment', async () => {
    const fleet = await fixture.make(sensor, 300);
    await fixture.start({ canaryPercent: 100 });
    for (const device of fleet.slice(0, 100)) await fixture.overrides.set('acme', device, three);
    const strangers = await fixture.make(await fixture.profile('other'), 10);
    const asked = [
      ...fleet.flatMap((device, index) => [
        { device, id: two, expected: index < 100 ? 'PERMISSION_DENIED' : 'nothing' },
        { device, id: three.toUpperCase(), expected: index < 100 ? 'nothing' : 'PERMISSION_DENIED' },
      ]),
      ...strangers.map((device) => ({ device, id: two, expected: 'PERMISSION_DENIED' })),
      { device: 'nobody', id: two, expected: 'PERMISSION_DENIED' },
    ];
    const found = await Promise.all(asked.map(({ device, id }) => refusal(fixture.chunk(device, id))));
    expect(found).to.deep.equal(asked.map(({ expected }) => expected));
  });

  describe('end at once, also for those that were just read, when the package', () => {
    type End = (device: string, rollout: string) => Promise<unknown>;
    const begun: [string, string, End][] = [
      [
        'is replaced by another assignment',
        'PERMISSION_DENIED',
        (device) => fixture.overrides.set('acme', device, three),
      ],
      ['is rolled back', 'PERMISSION_DENIED', (_, rollout) => fixture.rollouts.rollback(fixture.context, rollout)],
      [
        'must be signed from now on',
        'FAILED_PRECONDITION',
        async () => void (await fixture.profile('sensor', { requireSignature: true })),
      ],
      ['belongs to a device that is deleted', 'PERMISSION_DENIED', (device) => fixture.remove(device)],
    ];
    for (const [what, code, end] of begun) {
      it(what, async () => {
        const [device] = (await fixture.make(sensor, 1)) as [string];
        const rollout = await fixture.start({ canaryPercent: 100 });
        const before = await refusal(fixture.chunk(device, two));
        await end(device, rollout);
        expect([before, await refusal(fixture.chunk(device, two))]).to.deep.equal(['nothing', code]);
      });
    }

    // A download that has begun may be finished.
    const idle: [string, End][] = [
      ['is paused before the device has begun', (_, rollout) => fixture.rollouts.pause(fixture.context, rollout)],
      ['is cancelled before the device has begun', (_, rollout) => fixture.rollouts.cancel(fixture.context, rollout)],
      [
        'is skipped before the device has begun',
        (device, rollout) => fixture.rollouts.skip(fixture.context, rollout, [device]),
      ],
    ];
    for (const [what, end] of idle) {
      it(what, async () => {
        const [downloading, waiting] = (await fixture.make(sensor, 2)) as [string, string];
        const rollout = await fixture.start({ canaryPercent: 100 });
        expect(await refusal(fixture.chunk(downloading, two))).to.equal('nothing');
        await end(waiting, rollout);
        expect(await refusal(fixture.chunk(downloading, two))).to.equal('nothing');
        expect(await refusal(fixture.chunk(waiting, two))).to.equal('PERMISSION_DENIED');
      });
    }

    it('is signed by a key that is no longer trusted', async () => {
      const own = generateKeyPairSync('ed25519');
      await fixture.trust(own.publicKey);
      await fixture.profile('sensor', { requireSignature: true });
      const signed = await fixture.package('signed', '4.0.0', { signed: own.privateKey });
      const [device] = (await fixture.make(sensor, 1)) as [string];
      await fixture.overrides.set('acme', device, signed);
      for (let time = 0; time < 2; time += 1) expect(await refusal(fixture.chunk(device, signed))).to.equal('nothing');
      await fixture.trust(generateKeyPairSync('ed25519').publicKey);
      expect(await refusal(fixture.chunk(device, signed))).to.equal('FAILED_PRECONDITION');
      await fixture.trust(own.publicKey);
      expect(await refusal(fixture.chunk(device, signed))).to.equal('nothing');
    });
  });

  it('follow what another process has changed', async () => {
    const [device] = (await fixture.make(sensor, 1)) as [string];
    await fixture.overrides.set('acme', device, two);
    expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
    await fixture.rows('DELETE FROM ota_assignments');
    expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
  });
});
