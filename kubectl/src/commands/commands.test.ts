import { expect } from 'chai';
import { painter } from '../format/paint.ts';
import { deviceRow } from './devices.ts';
import { formatPlan, planRequest, rolloutOfManifest } from './plan.ts';
import { proofTarget } from './proof.ts';
import { statusTarget } from './status-target.ts';
import { mismatch, nextPart, TransferProgress } from './upload.ts';
import { doneText, retryRollout, verbBody } from './verbs.ts';

const plain = painter(false);
const id = '01a1fe36-b8ce-77b2-8dcc-b7639ec2c922';
const hash = '7f622db5ad1e83e1bc86656e4cf2d5144a45ba2276b9b32f112d883168d9e5f4';

describe('the argument of status', () => {
  for (const [text, kinds, name] of [
    [undefined, 4, undefined],
    ['all', 4, undefined],
    ['rollouts', ['OtaRollout'], undefined],
    ['otapkg', ['OtaPackage'], undefined],
    ['ptmpl/a', ['ProvisioningTemplate'], 'a'],
    ['OtaRollout.kellet.dev/a', ['OtaRollout'], 'a'],
    ['weather-1.2.0', ['OtaRollout'], 'weather-1.2.0'],
  ] as const) {
    it(text ?? '(nothing)', () => {
      const target = statusTarget(text);
      if (typeof kinds === 'number') expect(target.kinds).to.have.length(kinds);
      else expect(target.kinds).to.deep.equal(kinds);
      expect(target.name).to.equal(name);
    });
  }
  for (const text of ['pods/a', 'otaro/', 'otaro/a/b']) {
    it(`rejects ${text}`, () => expect(() => statusTarget(text)).to.throw('is not KIND/NAME'));
  }
});

describe('the request of a rollout command', () => {
  for (const [verb, options, want] of [
    ['pause', { devices: [] }, {}],
    ['resume', { devices: [] }, {}],
    ['resume', { devices: [], canaryPercent: 50 }, { canary_percent: 50 }],
    ['retry', { devices: [] }, { device_ids: [] }],
    ['skip', { devices: [id] }, { device_ids: [id] }],
  ] as const) {
    it(`${verb} ${JSON.stringify(options)}`, () => expect(verbBody(verb, options)).to.deep.equal(want));
  }
});

describe('the text after a rollout command', () => {
  const at = (updated_at: string) => ({ rollout_id: id, updated_at });
  for (const [what, verb, before, want] of [
    ['says what was done', 'pause', undefined, 'paused'],
    ['says that devices are retried', 'retry', at('2026-01-01T00:00:00Z'), 'retrying'],
    ['says that there is nothing to retry', 'retry', at('2026-01-01T00:00:01Z'), 'has nothing to retry'],
  ] as const) {
    it(what, () => expect(doneText(verb, before, at('2026-01-01T00:00:01Z'))).to.equal(want));
  }
});

describe('a retry', () => {
  /** A data plane whose rollout has these failures at each retry. */
  const retried = async (...failures: number[]) => {
    let revision = 0;
    let waits = 0;
    const rollout = () => ({ rollout_id: id, updated_at: String(revision) });
    const call = async (method: string): Promise<unknown> => {
      if (method === 'POST' && failures.shift()! > 0) revision += 1;
      return rollout();
    };
    const { before, response } = await retryRollout(
      { call: call as <T>(method: string) => Promise<T> },
      `ota/rollouts/${id}`,
      { device_ids: [] },
      async () => (waits += 1),
    );
    return { text: doneText('retry', before, response), waits, left: failures.length };
  };

  it('looks again for a failure that was not stored yet, and only then', async () => {
    expect(await retried(1, 0)).to.deep.equal({ text: 'retrying', waits: 0, left: 1 });
    expect(await retried(0, 1)).to.deep.equal({ text: 'retrying', waits: 1, left: 0 });
    expect(await retried(0, 0, 1)).to.deep.equal({ text: 'has nothing to retry', waits: 1, left: 1 });
  });
});

describe('a plan', () => {
  const references = { packageId: 'P', profileId: 'D' };
  const spec = { packageRef: { name: 'p' }, targetProfileRef: { name: 'd' }, canaryPercent: 20 };

  it('sends exactly the fields of the manifest', () => {
    const least = { package_id: 'P', target_profile_id: 'D', canary_percent: 20 };
    expect(planRequest(spec, references)).to.deep.equal(least);
    const full = {
      ...spec,
      failureThresholdPercent: 0,
      minFailures: 2,
      steps: [
        { percent: 50, soakSeconds: 60 },
        { percent: 100, approval: true },
      ],
      maxPerMinute: 10,
      deviceTimeoutSeconds: 600,
      maxAttempts: 3,
      window: { start: '22:00', end: '04:00', days: ['Saturday' as const], timeZone: 'Europe/Berlin' },
    };
    expect(planRequest(full, { ...references, rollbackPackageId: 'R' })).to.deep.equal({
      ...least,
      rollback_package_id: 'R',
      failure_threshold_percent: 0,
      min_failures: 2,
      steps: [
        { percent: 50, soak_seconds: 60 },
        { percent: 100, approval: true },
      ],
      max_per_minute: 10,
      device_timeout_seconds: 600,
      max_attempts: 3,
      window: { start: '22:00', end: '04:00', days: ['sat'], time_zone: 'Europe/Berlin' },
    });
  });

  const manifest = (kind: string, more = '') =>
    `kind: ${kind}\nspec: {packageRef: {name: p}, targetProfileRef: {name: d}${more}}\n`;
  it('finds the only rollout in a manifest', () => {
    const text = `${manifest('OtaPackage')}---\n${manifest('OtaRollout', ', canaryPercent: 5')}---\n`;
    expect(rolloutOfManifest(text, 'f').spec.canaryPercent).to.equal(5);
  });
  for (const [what, text, message] of [
    ['nothing', '', 'f contains no OtaRollout'],
    ['no rollout', manifest('OtaPackage'), 'f contains no OtaRollout'],
    [
      'two',
      `${manifest('OtaRollout')}---\n${manifest('OtaRollout')}`,
      'f contains 2 OtaRollouts; plan needs exactly one',
    ],
    ['an incomplete rollout', manifest('OtaRollout'), 'spec needs packageRef, targetProfileRef and canaryPercent'],
    ['invalid YAML', 'a: [', 'f is not valid YAML'],
  ] as const) {
    it(`rejects a manifest with ${what}`, () => expect(() => rolloutOfManifest(text, 'f')).to.throw(message));
  }

  it('is formatted as a table of steps and excluded devices', () => {
    const plan = {
      eligible: 10,
      steps: [
        { percent: 20, scheduled: 2, seconds: 0, device_ids: ['a', 'b'] },
        { percent: 100, scheduled: 10, seconds: 3600, device_ids: ['c', 'd', 'e'] },
      ],
      excluded: [],
      excluded_counts: { other_hardware: 1, already_on_version: 4 },
      ...{ seconds_from: 'settings', device_seconds: 0, history_rollout_ids: [] },
    };
    expect(formatPlan(plan, plain)).to.equal(
      [
        '10 devices are eligible\n',
        'STEP     COVER   DEVICES   TOTAL   EARLIEST   EXAMPLES',
        'canary   20%     2         2       at once    a, b',
        '2        100%    8         10      60m        c, d, …',
        '\nexcluded:',
        '  4 already on version',
        '  1 other hardware\n',
      ].join('\n'),
    );
    const history = { seconds_from: 'history', device_seconds: 95, history_rollout_ids: ['r2', 'r1'] };
    const lines = formatPlan({ ...plan, ...history, excluded_counts: {} }, plain).split('\n');
    expect(lines[2]).to.contain('EXPECTED');
    expect(lines.at(-2)).to.equal('expected if a device takes 95s, as in 2 earlier rollouts');
  });
});

describe('the argument of proof', () => {
  for (const [text, want] of [
    [hash, { kind: 'hash', hash, deviceId: undefined }],
    [hash.toUpperCase(), { kind: 'hash', hash, deviceId: undefined }],
    [id, { kind: 'device', deviceId: id }],
    [`${id}/${hash}`, { kind: 'hash', hash, deviceId: id }],
  ] as const) {
    it(text, () => expect(proofTarget(text)).to.deep.equal(want));
  }
  it('rollout NAME', () => expect(proofTarget('rollout', 'a')).to.deep.equal({ kind: 'rollout', name: 'a' }));
  it('rejects rollout without a name, and a second argument without it', () => {
    expect(() => proofTarget('rollout')).to.throw('needs the name');
    expect(() => proofTarget(hash, id)).to.throw('takes one argument');
  });
  for (const text of ['', 'x', hash.slice(1), `${hash}/${id}`, `${id}/`, `${id}/${hash}/x`, '/']) {
    it(`rejects ${text || '(nothing)'}`, () => expect(() => proofTarget(text)).to.throw('neither a hash'));
  }
});

describe('a device of a rollout', () => {
  const device = {
    device_id: id,
    state: 'failure',
    progress_percent: 40,
    attempts: 2,
    firmware_version: '1.0.0',
    error: `${'x'.repeat(80)}\ny`,
  };
  it('is a row with the error truncated unless wide', () => {
    const [, , progress, , , , narrow] = deviceRow(device, false, 0);
    expect(progress).to.equal('40 %');
    expect(narrow).to.have.length(60);
    expect(deviceRow(device, true, 0)[6]).to.equal(`${'x'.repeat(80)} y`);
  });
});

describe('an upload', () => {
  const artifact = { uri: 'upload://', sha256: 'AB', sizeBytes: 3 };
  for (const [what, changed, file, want] of [
    ['the same', {}, { size: 3, sha256: 'ab' }, undefined],
    ['no declared size', { sizeBytes: undefined }, { size: 9, sha256: 'ab' }, undefined],
    ['another size', {}, { size: 4, sha256: 'ab' }, '3 bytes'],
    ['other bytes', {}, { size: 3, sha256: 'cd' }, 'SHA-256'],
    ['an empty file', {}, { size: 0, sha256: 'ab' }, 'empty'],
    [
      'a package with an artifact URL',
      { uri: 'https://x.test/a' },
      { size: 3, sha256: 'ab' },
      'fetched from https://x.test/a',
    ],
  ] as const) {
    it(what, () => {
      const problem = mismatch({ ...artifact, ...changed }, file);
      if (want === undefined) expect(problem).to.equal(undefined);
      else expect(problem).to.contain(want);
    });
  }
  it('sends part by part to the last byte', () => {
    const parts = [];
    for (let part = nextPart(0, 25, 10); part; part = nextPart(part.to + 1, 25, 10))
      parts.push(`${part.from}-${part.to}`);
    expect(parts).to.deep.equal(['0-9', '10-19', '20-24']);
  });
  it('prints every 10 % without a terminal, and draws a bar on one', () => {
    const said: string[] = [];
    const drawn: string[] = [];
    const terminal = {
      ...{
        write: () => undefined,
        control: () => undefined,
        say: (line: string) => void said.push(line),
        draw: (line: string) => void drawn.push(line),
      },
      ...{ isInteractive: false, hasColor: false, hasUnicode: false, columns: 80 },
    };
    const quiet = new TransferProgress({ ...terminal, showsProgress: false }, 1000);
    for (let bytes = 0; bytes <= 1000; bytes += 20) quiet.at(bytes);
    expect(said).to.have.length(11);
    expect(said[10]).to.equal('1000 B of 1000 B (100 %)');
    expect(drawn).to.deep.equal([]);
    new TransferProgress({ ...terminal, showsProgress: true }, 1000).at(500);
    expect(drawn[0]).to.equal(`\r\u001b[K[${'#'.repeat(15)}${'.'.repeat(15)}] 500 B of 1000 B (50 %)`);
  });
});
