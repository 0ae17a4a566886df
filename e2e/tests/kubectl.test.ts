// Using Kellet with kubectl: columns, consistency with REST, and validation errors.
import { expect } from 'chai';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl, makeArtifact, makeFleet, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

const apiVersion = 'kellet.dev/v1alpha1';

interface Resource {
  metadata: { name: string };
  status?: Record<string, unknown> & {
    conditions?: { type: string; status: string; reason: string; message: string }[];
  };
}

/** Returns the first row of `kubectl get` as a record. */
function columns(text: string): Record<string, string> {
  const [header, row] = text.trimEnd().split('\n') as [string, string];
  const starts = [...header.matchAll(/\S+/g)].map((match) => [match[0], match.index] as const);
  return Object.fromEntries(
    starts.map(([name, from], index) => [name, row.slice(from, starts[index + 1]?.[1]).trim()]),
  );
}

describe('kubectl', () => {
  let kube: Kubectl;
  before(async () => {
    kube = await kubectl();
  });

  const otaPackage = async (name: string, version: string, deviceType: string) => {
    const { uri, sha256, sizeBytes } = await makeArtifact();
    const spec = { type: 'Firmware', version, artifact: { uri, sha256, sizeBytes }, compatibility: { deviceType } };
    return { apiVersion, kind: 'OtaPackage', metadata: { name }, spec };
  };
  const otaRollout = (name: string, packageName: string, profileName: string, fields: object = {}) => ({
    apiVersion,
    kind: 'OtaRollout',
    metadata: { name },
    spec: { packageRef: { name: packageName }, targetProfileRef: { name: profileName }, canaryPercent: 20, ...fields },
  });

  it('runs a rollout from apply to completion and shows it in columns', async () => {
    const rest = await admin();
    const profile = await makeProfile(rest);
    const fleet = await makeFleet(rest, profile.profile_id, 10);
    const name = unique('update');
    await kube.apply(await otaPackage(name, '1.0.0', profile.type), otaRollout(name, name, profile.name));
    await kube.wait(`otapkg/${name}`, 'condition=Ready');
    expect(columns(await kube.run(['get', 'otapkg', name]))).to.include({
      NAME: name,
      TYPE: 'Firmware',
      VERSION: '1.0.0',
      'DEVICE-TYPE': profile.type,
      VERIFIED: 'True',
      READY: 'True',
    });
    fleet.start();
    try {
      await kube.wait(`otaro/${name}`, 'jsonpath={.status.counts.succeeded}=2');
      expect(columns(await kube.run(['get', 'otaro', name]))).to.include({
        PHASE: 'Active',
        PACKAGE: name,
        PROFILE: profile.name,
        'CANARY%': '20',
        SCHEDULED: '2',
        OK: '2',
        FAILED: '0',
        TIMEDOUT: '0',
        'FAIL%': '0',
      });
      expect(fleet.devices.filter(({ commands }) => commands.length > 0)).to.have.length(2);
      await kube.run(['patch', 'otaro', name, '--type', 'merge', '-p', '{"spec":{"canaryPercent":100}}']);
      await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Completed');
    } finally {
      await fleet.stop();
    }
    const { status } = await kube.json<Resource>(['get', 'otaro', name]);
    expect(status).to.deep.include({ outcome: 'Succeeded', scheduledCount: 2 });
    const rollout = await rest.get<Rollout>(`/api/v1/ota/rollouts/${String(status!['rolloutId'])}`);
    expect(rollout).to.include({ status: 'completed', outcome: 'succeeded' });
    expect(await kube.run(['describe', 'otaro', name])).to.match(/Events:[\s\S]*Completed/);
  });

  it('lists resources created with kubectl and through REST in one category', async () => {
    const profile = await makeProfile(await admin(), { name: `Shown ${unique('profile')}` });
    const { items } = await kube.json<{ items: (Resource & { kind: string })[] }>(['get', 'kellet']);
    const found = items.find(({ status }) => status?.['profileId'] === profile.profile_id);
    expect(found?.metadata.name).to.match(/^shown-profile-[0-9a-f]+-[0-9a-f]{5}$/);

    const name = unique('here');
    const spec = { type: 'thermometer', defaultTags: { made: 'here' }, anchoringPolicy: { mode: 'PerEvent' } };
    await kube.apply({ apiVersion, kind: 'DeviceProfile', metadata: { name }, spec });
    await kube.wait(`dprof/${name}`, 'condition=Ready');
    const profiles = await (
      await admin()
    ).list<Record<string, unknown>>('/api/v1/profiles', 'profiles', { page_size: 500 });
    expect(profiles.find((candidate) => candidate['name'] === name)).to.deep.include({
      type: 'thermometer',
      default_tags: { made: 'here' },
      anchoring_policy: { mode: 'per_event' },
    });
  });

  it('reports missing references, and recovers when they appear', async () => {
    const profile = await makeProfile(await admin());
    const name = unique('early');
    await kube.apply(otaRollout(name, name, profile.name));
    const reason = async () => {
      const { status } = await kube.json<Resource>(['get', 'otaro', name]);
      return status?.conditions?.find(({ type, status: held }) => type === 'Ready' && held !== 'True');
    };
    const condition = await waitUntil(async () => ((await reason())?.message.includes(name) ? reason() : undefined), {
      what: 'the condition',
      timeoutMilliseconds: 20_000,
    });
    expect(condition.reason).to.match(/Reference|NotFound/);
    await kube.apply(await otaPackage(name, '1.0.0', profile.type));
    await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Active', 30);
    await kube.run(['delete', 'otaro', name]);
  });

  it('gets clear validation errors immediately', async () => {
    const name = unique('fixed');
    const manifest = await otaPackage(name, '1.0.0', 'thermometer');
    await kube.apply(manifest);
    const refusal = (object: object) =>
      kube.apply(object).then(
        () => 'applied',
        (error: Error) => error.message,
      );
    expect(await refusal({ ...manifest, spec: { ...manifest.spec, version: '1.0.1' } })).to.contain(
      'version must not change',
    );
    const bad = { ...manifest, metadata: { name: unique('bad') } };
    expect(await refusal({ ...bad, spec: { ...bad.spec, version: 'one' } })).to.contain('semantic version');
    expect(await refusal({ ...bad, spec: { ...bad.spec, colour: 'red' } })).to.contain('colour');
    expect(await refusal(otaRollout(unique('bad'), name, 'x', { canaryPercent: 0 }))).to.contain('canaryPercent');
    await kube.run(['delete', 'otapkg', name]);
  });

  it('explains every field', async () => {
    for (const kind of [
      'dprof.spec.anchoringPolicy',
      'ptmpl.spec.keyUse',
      'otapkg.spec.artifact',
      'otaro.status.counts',
    ]) {
      expect(await kube.run(['explain', kind])).to.match(/DESCRIPTION:\n\s+\S/);
    }
  });
});
