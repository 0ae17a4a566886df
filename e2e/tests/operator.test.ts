// The operator on the whole stack: manifests take effect in the data plane, and its state is reported in status, in any
// order and across restarts, without interfering with other appliers.
import { spawn } from 'node:child_process';
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  apiVersion,
  type Condition,
  createdByLabel,
  displayNameAnnotation,
  finalizer,
  type ObjectMeta,
  type OtaRollout,
  type OtaRolloutSpec,
  rotateKeyAnnotation,
  tenantLabel,
} from '@kellet/crds';
import { expect } from 'chai';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest, type RestError } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { tenantCommand } from '../testing/tenant-command.ts';

interface Resource {
  metadata: ObjectMeta;
  spec: Record<string, unknown>;
  status?: { conditions?: Condition[]; [field: string]: unknown };
}

interface Device {
  id: string;
  rest: Rest;
}

interface Package {
  name: string;
  version: string;
}

describe('operator', function () {
  this.timeout(180_000);

  const tenant = `op-${randomBytes(3).toString('hex')}`;
  const namespace = `kellet-${tenant}`;
  let kubectl: Kubectl;
  let admin: Rest;
  let serial = 0;
  const unique = (prefix: string): string => `${prefix}-${++serial}`;

  const make = (kind: string, name: string, spec: object, metadata: object = {}) => ({
    apiVersion,
    kind,
    metadata: { name, ...metadata },
    spec,
  });
  const get = <R = Resource>(kind: string, name: string): Promise<R> => kubectl.json<R>(['get', kind, name]);
  const condition = async (kind: string, name: string, type: string): Promise<string> => {
    const { status } = await get(kind, name);
    const found = status?.conditions?.find((entry) => entry.type === type);
    return found ? `${found.status} ${found.reason}` : 'absent';
  };
  const untilCondition = (kind: string, name: string, type: string, want: string, seconds = 30): Promise<unknown> =>
    waitUntil(
      async () => {
        const found = await condition(kind, name, type);
        if (found === want) return true;
        throw new Error(`it is ${found}`);
      },
      { what: `${kind}/${name} ${type}=${want}`, timeoutMilliseconds: seconds * 1000 },
    );
  const untilRollout = (name: string, what: string, holds: (rollout: OtaRollout) => boolean, seconds = 30) =>
    waitUntil(
      async () => {
        const rollout = await get<OtaRollout>('otaro', name);
        if (holds(rollout)) return rollout;
        throw new Error(JSON.stringify(rollout.status));
      },
      { what: `otaro/${name} ${what}`, timeoutMilliseconds: seconds * 1000 },
    );
  const untilPhase = (name: string, phase: string, seconds = 30) =>
    untilRollout(name, phase, ({ status }) => status?.phase === phase, seconds);
  const goes = (kind: string, name: string): Promise<unknown> =>
    waitUntil(async () => (await kubectl.run(['get', kind, name, '--ignore-not-found'])) === '', {
      what: `${kind}/${name} gone`,
    });
  const secretValue = async (name: string, key: string): Promise<string> => {
    const { data } = await kubectl.json<{ data: Record<string, string> }>(['get', 'secret', name]);
    return Buffer.from(data[key]!, 'base64').toString();
  };

  /** Applies a package with an artifact served by the stack, and waits until it is verified. */
  const makePackage = async (deviceType: string): Promise<Package> => {
    const version = `1.${++serial}.0`;
    const content = randomBytes(2048);
    const file = `${tenant}-${version}.bin`;
    await writeFile(join(stack().artifactsFolder, file), content);
    const name = `firmware-${version}`;
    const sha256 = createHash('sha256').update(content).digest('hex');
    const artifact = { uri: `${stack().info.artifacts}/${file}`, sha256, sizeBytes: content.length };
    await kubectl.apply(
      make('OtaPackage', name, { type: 'Firmware', version, artifact, compatibility: { deviceType } }),
    );
    await kubectl.wait(`otapkg/${name}`, 'condition=Ready');
    return { name, version };
  };

  /** Applies a profile with a template and claims devices with the generated key. */
  const makeFleet = async (size: number): Promise<{ profile: string; devices: Device[] }> => {
    const profile = unique('fleet');
    await kubectl.apply(
      make('DeviceProfile', profile, { type: profile }),
      make('ProvisioningTemplate', profile, { profileRef: { name: profile } }),
    );
    await kubectl.wait(`ptmpl/${profile}`, 'condition=Ready');
    const provision_key = await secretValue(`${profile}-provision-key`, 'provisionKey');
    const devices: Device[] = [];
    for (let index = 0; index < size; index += 1) {
      const name = `${profile}-${index}`;
      const claim = { provision_key, device_name: name, hardware_id: name };
      const reply = await new Rest(stack().info.rest).post<{ device_id: string; api_key: string }>(
        '/api/v1/provision',
        claim,
      );
      devices.push({ id: reply.device_id, rest: new Rest(stack().info.rest, reply.api_key) });
    }
    return { profile, devices };
  };

  /** Returns the device's rollout if it has been scheduled. */
  const assignment = async ({ id, rest }: Device): Promise<string | undefined> => {
    const reply = await rest.send<{ rollout_id?: string }>('GET', `/api/v1/devices/${id}/ota`);
    return reply.status === 200 ? reply.body.rollout_id : undefined;
  };

  /** Reports for every scheduled device without a report. */
  const report = async (
    devices: Device[],
    rollout_id: string,
    firmware_version: string,
    status: 'success' | 'failure',
    reported = new Set<string>(),
  ): Promise<void> => {
    for (const device of devices) {
      if (reported.has(device.id) || (await assignment(device)) !== rollout_id) continue;
      reported.add(device.id);
      const body = { device_id: device.id, rollout_id, firmware_version, status };
      await device.rest.post(`/api/v1/devices/${device.id}/ota/report`, body);
    }
  };

  const makeRollout = (name: string, profile: string, package_: Package, spec: Partial<OtaRolloutSpec> = {}) =>
    make('OtaRollout', name, {
      packageRef: { name: package_.name },
      targetProfileRef: { name: profile },
      canaryPercent: 20,
      ...spec,
    });

  before(async () => {
    kubectl = new Kubectl(await stack().kubectl(), stack().info.kubeconfig, namespace);
    const email = `admin@${tenant}.test`;
    await kubectl.apply(make('Tenant', tenant, { adminEmail: email, trustedSigningKeys: [] }));
    await kubectl.wait(`ktenant/${tenant}`, 'condition=Ready');
    const password = await secretValue(`${tenant}-admin`, 'password');
    admin = await Rest.login(stack().info.rest, { email, password });
  });

  after(async () => {
    await kubectl.run(['delete', 'ktenant', tenant, '--ignore-not-found', '--wait=false']);
  });

  it('shows the number of devices of a profile, whoever adds or removes them', async () => {
    const { profile, devices } = await makeFleet(2);
    const profileId = (await get('dprof', profile)).status!['profileId'];
    const shows = (number: number) =>
      waitUntil(async () => (await get('dprof', profile)).status!['devices'] === number, {
        what: `${number} devices of ${profile}`,
        timeoutMilliseconds: 10_000,
      });
    await shows(2);
    const added = { hardware_id: unique('hardware'), profile_id: profileId };
    const { device } = await admin.post<{ device: { device_id: string } }>('/api/v1/devices', added);
    await shows(3);
    await admin.patch(`/api/v1/devices/${device.device_id}`, { profile_id: null });
    await shows(2);
    await admin.send('DELETE', `/api/v1/devices/${devices[0]!.id}`);
    await shows(1);
  });

  describe('tenants', () => {
    it('creates the namespace and an initial password with which the tenant can sign in', async () => {
      const made = await kubectl.json<Resource>(['get', 'namespace', namespace]);
      expect(made.metadata.labels).to.include({ [tenantLabel]: tenant });
      expect((await admin.get<{ tenant_id: string }>('/api/v1/tenant')).tenant_id).to.equal(tenant);
    });

    it('adopts a labelled namespace that the Tenant names', async () => {
      const other = `${tenant}-b`;
      const adopted = `${tenant}-own`;
      await kubectl.apply({
        apiVersion: 'v1',
        kind: 'Namespace',
        metadata: { name: adopted, labels: { [tenantLabel]: other } },
      });
      await kubectl.apply(make('Tenant', other, { namespace: adopted }));
      await kubectl.wait(`ktenant/${other}`, 'condition=Ready');
      expect((await get('ktenant', other)).status?.['namespace']).to.equal(adopted);
      await kubectl.run(['delete', 'ktenant', other, '--wait=false']);
      // Its resource stays until its data is purged.
      await waitUntil(() => tenantCommand('purge', other, '--now').then(() => true), { what: 'the purge' });
      await kubectl.run(['wait', `ktenant/${other}`, '--for=delete', '--timeout=30s']);
      const left = await kubectl.json<Resource>(['get', 'namespace', adopted]);
      expect(left.metadata.deletionTimestamp, 'an adopted namespace is kept').to.equal(undefined);
      await kubectl.run(['delete', 'namespace', adopted, '--wait=false']);
    });

    it('waits for the Secret with the password', async () => {
      const other = `${tenant}-c`;
      const secret = unique('late');
      await kubectl.apply(
        make('Tenant', other, {
          adminEmail: `admin@${other}.test`,
          adminPasswordSecretRef: { namespace: `kellet-${other}`, name: secret },
        }),
      );
      await untilCondition('ktenant', other, 'Ready', 'False SecretNotFound');
      const password = randomUUID();
      const place = kubectl.in(`kellet-${other}`);
      await place.run(['create', 'secret', 'generic', secret, `--from-literal=password=${password}`]);
      await kubectl.wait(`ktenant/${other}`, 'condition=Ready');
      await Rest.login(stack().info.rest, { email: `admin@${other}.test`, password });
      await kubectl.run(['delete', 'ktenant', other, '--wait=false']);
    });

    it('reports resources in a namespace without a tenant, and recovers when the label is set', async () => {
      const other = `${tenant}-d`;
      const place = kubectl.in(unique(`${tenant}-stray`));
      await place.run(['create', 'namespace', place.namespace]);
      await place.apply(make('DeviceProfile', 'stray', { type: 'stray' }));
      await waitUntil(
        async () => {
          const { status } = await place.json<Resource>(['get', 'dprof', 'stray']);
          return status?.conditions?.some(({ type, reason }) => type === 'Ready' && reason === 'NoTenant');
        },
        { what: 'NoTenant' },
      );
      await kubectl.apply(make('Tenant', other, {}));
      await place.run(['label', 'namespace', place.namespace, `${tenantLabel}=${tenant}`]);
      // The tenant already has a namespace, so a second one gets none.
      await waitUntil(
        async () => {
          const { status } = await place.json<Resource>(['get', 'dprof', 'stray']);
          return status?.conditions?.some(({ message }) => message.includes(`already has the namespace ${namespace}`));
        },
        { what: 'a second namespace is refused' },
      );
      await kubectl.wait(`ktenant/${other}`, 'condition=Ready');
      await kubectl.run(['delete', 'ktenant', other, '--wait=false']);
      await kubectl.run(['delete', 'namespace', place.namespace, '--wait=false']);
    });
  });

  describe('resources', () => {
    it('reports why a resource cannot be applied', async () => {
      const bad = makeRollout('bad', 'x', { name: 'p', version: '' }, { steps: [{ percent: 50 }, { percent: 10 }] });
      const failure = await kubectl.apply(bad).then(String, String);
      expect(failure).to.include('steps must have increasing percent values');
      expect(failure).to.include('steps must have percent values greater than canaryPercent');
    });

    it('resolves references in any order', async () => {
      const name = unique('order');
      await kubectl.apply(make('ProvisioningTemplate', name, { profileRef: { name } }));
      await untilCondition('ptmpl', name, 'ReferencesResolved', 'False ReferenceNotFound');
      await kubectl.apply(make('DeviceProfile', name, { type: name }));
      await kubectl.wait(`ptmpl/${name}`, 'condition=Ready', 10);
    });

    it('mirrors each resource to REST and removes it there on deletion', async () => {
      const name = unique('shown');
      await kubectl.apply(make('DeviceProfile', name, { type: name, anchoringPolicy: { mode: 'PerEvent' } }));
      await kubectl.wait(`dprof/${name}`, 'condition=Ready');
      const id = (await get('dprof', name)).status?.['profileId'] as string;
      const shown = await admin.get<{ name: string; anchoring_policy: { mode: string } }>(`/api/v1/profiles/${id}`);
      expect(shown).to.deep.include({ name, anchoring_policy: { mode: 'per_event' } });
      await kubectl.run(['delete', 'dprof', name, '--timeout=30s']);
      const failure = await admin.get(`/api/v1/profiles/${id}`).catch((error: unknown) => error);
      expect((failure as RestError).status).to.equal(404);
    });

    it('adopts resources created through REST, exactly once', async () => {
      const name = `Made by REST ${unique('x')}`;
      const { profile_id } = await admin.post<{ profile_id: string }>('/api/v1/profiles', { name, type: 'rest' });
      const items = await kubectl.json<{ items: Resource[] }>(['get', 'dprof', '-l', `${createdByLabel}=api`]);
      const found = items.items.find(({ metadata }) => metadata.annotations?.[displayNameAnnotation] === name)!;
      await kubectl.wait(`dprof/${found.metadata.name}`, 'condition=Ready');
      const now = await get('dprof', found.metadata.name);
      expect(now.status?.['profileId']).to.equal(profile_id);
      expect(now.metadata.finalizers).to.deep.equal([finalizer]);
      await admin.delete(`/api/v1/profiles/${profile_id}`);
      await goes('dprof', found.metadata.name);
    });

    it('blocks the deletion of a resource in use, and reports by what', async () => {
      const name = unique('used');
      await kubectl.apply(
        make('DeviceProfile', name, { type: name }),
        make('ProvisioningTemplate', name, { profileRef: { name } }),
      );
      await kubectl.wait(`ptmpl/${name}`, 'condition=Ready');
      await kubectl.run(['delete', 'dprof', name, '--wait=false']);
      await untilCondition('dprof', name, 'Ready', 'False DeletionBlocked');
      await kubectl.run(['delete', 'ptmpl', name, '--timeout=30s']);
      await goes('dprof', name);
    });

    it('reads a provision key from a Secret, and generates and rotates its own', async () => {
      const name = unique('keys');
      await kubectl.apply(
        make('DeviceProfile', name, { type: name }),
        make('ProvisioningTemplate', name, { profileRef: { name }, keySecretRef: { name: `${name}-own` } }),
      );
      await untilCondition('ptmpl', name, 'KeyIssued', 'False SecretNotFound');
      const key = randomUUID();
      await kubectl.run(['create', 'secret', 'generic', `${name}-own`, `--from-literal=provisionKey=${key}`]);
      await kubectl.wait(`ptmpl/${name}`, 'condition=Ready');
      const claim = (provision_key: string, hardware_id: string) =>
        new Rest(stack().info.rest).send('POST', '/api/v1/provision', {
          body: { provision_key, device_name: hardware_id, hardware_id },
        });
      expect((await claim(key, `${name}-1`)).status).to.equal(200);

      const minted = `${name}-m`;
      await kubectl.apply(make('ProvisioningTemplate', minted, { profileRef: { name } }));
      await kubectl.wait(`ptmpl/${minted}`, 'condition=Ready');
      const before = await secretValue(`${minted}-provision-key`, 'provisionKey');
      expect((await claim(before, `${name}-2`)).status).to.equal(200);
      await kubectl.run(['annotate', 'ptmpl', minted, `${rotateKeyAnnotation}=1`]);
      await waitUntil(async () => (await claim(before, `${name}-3`)).status === 403, {
        what: 'the old key is refused',
      });
      const after = await secretValue(`${minted}-provision-key`, 'provisionKey');
      expect((await claim(after, `${name}-3`)).status).to.equal(200);

      // Through REST: the response contains the key once, and the Secret gets the same key.
      const template = `/api/v1/provisioning/templates/${(await get('ptmpl', minted)).status!['templateId'] as string}`;
      const { spec } = await get('ptmpl', minted);
      const { provision_key } = await admin.post<{ provision_key: string }>(`${template}/rotate-key`);
      expect((await claim(provision_key, `${name}-4`)).status, 'the new key is valid at once').to.equal(200);
      await waitUntil(async () => (await secretValue(`${minted}-provision-key`, 'provisionKey')) === provision_key, {
        what: 'the Secret has the new key',
      });
      expect((await claim(after, `${name}-5`)).status).to.equal(403);
      expect((await get('ptmpl', minted)).spec, 'a command does not change spec').to.deep.equal(spec);
      expect((await admin.patch<{ name: string }>(template, { name: 'Renamed' })).name).to.equal('Renamed');
      expect((await claim(provision_key, `${name}-6`)).status, 'an edit does not rotate the key').to.equal(200);
      const referring = (await get('ptmpl', name)).status!['templateId'] as string;
      const refused = await admin.send('POST', `/api/v1/provisioning/templates/${referring}/rotate-key`);
      expect(refused.body).to.include({ code: 'FAILED_PRECONDITION' });

      await kubectl.run(['delete', 'ptmpl', minted, '--timeout=30s']);
      await goes('secret', `${minted}-provision-key`);
    });

    it('reports the expiry of a key when it happens', async () => {
      const name = unique('expiry');
      await kubectl.apply(
        make('DeviceProfile', name, { type: name }),
        make('ProvisioningTemplate', name, { profileRef: { name }, expiresInSeconds: 2 }),
      );
      await untilCondition('ptmpl', name, 'Ready', 'True KeyExpired');
      expect((await get('ptmpl', name)).status?.['keyState']).to.equal('Expired');
    });

    it('reports an artifact that does not match its declaration', async () => {
      const name = unique('wrong');
      const file = `${tenant}-${name}.bin`;
      await writeFile(join(stack().artifactsFolder, file), 'something else');
      const artifact = { uri: `${stack().info.artifacts}/${file}`, sha256: '0'.repeat(64), sizeBytes: 14 };
      await kubectl.apply(make('OtaPackage', name, { type: 'Firmware', version: '9.9.9', artifact }));
      await untilCondition('otapkg', name, 'Verified', 'False ChecksumMismatch');
      expect(await condition('otapkg', name, 'Stalled')).to.equal('True ChecksumMismatch');
    });
  });

  describe('rollouts', () => {
    it('completes a rollout through canary, steps, soak and approval', async () => {
      const { profile, devices } = await makeFleet(10);
      const package_ = await makePackage(profile);
      const name = unique('steps');
      await kubectl.apply(
        makeRollout(name, profile, package_, {
          steps: [
            { percent: 50, soakSeconds: 1 },
            { percent: 100, approval: true },
          ],
        }),
      );
      const { status } = await untilRollout(name, 'canary', (found) => found.status?.counts?.scheduled === 2);
      const rolloutId = status!.rolloutId!;
      const reported = new Set<string>();
      await report(devices, rolloutId, package_.version, 'success', reported);
      await untilRollout(name, 'second stage', (found) => found.status?.counts?.scheduled === 5);
      await report(devices, rolloutId, package_.version, 'success', reported);
      const waiting = await untilPhase(name, 'Paused');
      expect(waiting.status?.pauseConditions?.map(({ reason }) => reason)).to.deep.equal(['StepApproval']);
      await admin.post(`/api/v1/ota/rollouts/${rolloutId}/approve`);
      await untilRollout(name, 'everyone', (found) => found.status?.counts?.scheduled === 10);
      await report(devices, rolloutId, package_.version, 'success', reported);
      const done = await untilPhase(name, 'Completed');
      expect(done.status).to.deep.include({ outcome: 'Succeeded', scheduledCount: 2, failurePercent: 0 });
      await kubectl.wait(`otaro/${name}`, 'condition=Ready', 5);
    });

    it('pauses automatically, is not un-paused by Git, and rolls back', async () => {
      const { profile, devices } = await makeFleet(10);
      const good = await makePackage(profile);
      const bad = await makePackage(profile);
      const name = unique('paused');
      const manifest = makeRollout(name, profile, bad, { canaryPercent: 50, rollbackPackageRef: { name: good.name } });
      await kubectl.apply(manifest);
      const { status } = await untilRollout(name, 'canary', (found) => found.status?.counts?.scheduled === 5);
      await report(devices, status!.rolloutId!, bad.version, 'failure');
      const paused = await untilPhase(name, 'Paused');
      expect(paused.status?.pauseConditions?.[0]?.reason).to.equal('FailureThresholdExceeded');
      expect(paused.status?.failurePercent).to.be.greaterThan(10);
      await untilCondition('otaro', name, 'Degraded', 'True FailureThresholdExceeded');

      // A GitOps tool keeps applying its manifests with its own field manager.
      for (let round = 0; round < 3; round += 1) {
        await kubectl.run(
          ['apply', '--server-side', '--field-manager=gitops', '--force-conflicts', '--filename', '-'],
          JSON.stringify({ ...manifest, metadata: { ...manifest.metadata, annotations: { round: `${round}` } } }),
        );
      }
      await untilRollout(name, 'the last annotation', ({ metadata }) => metadata.annotations?.round === '2');
      const table = await kubectl.run(['get', 'otaro', name]);
      expect(table).to.match(/PHASE +PACKAGE +PROFILE +CANARY% +SCHEDULED +OK +FAILED +TIMEDOUT +FAIL% +AGE/);
      expect(table).to.match(new RegExp(`^${name} +Paused +${bad.name} +${profile} +50 +5 `, 'm'));
      const events = await waitUntil(
        async () => {
          const { items } = await kubectl.json<{
            items: { reason: string; type: string; involvedObject: { name: string } }[];
          }>(['get', 'events']);
          const reasons = items
            .filter(({ involvedObject }) => involvedObject.name === name)
            .map(({ reason }) => reason);
          return reasons.includes('FailureThresholdExceeded') && reasons;
        },
        { what: 'the Event of the pause' },
      );
      expect(events).to.include('Started');
      expect(events).to.not.include('Resumed');

      await kubectl.run(['patch', 'otaro', name, '--type=merge', '--patch={"spec":{"desiredState":"RolledBack"}}']);
      await untilPhase(name, 'RollingBack').catch(() => undefined);
      await report(devices, status!.rolloutId!, good.version, 'success');
      const done = await untilPhase(name, 'Completed');
      expect(done.status?.outcome).to.equal('RolledBack');
    });

    it('is held by spec.paused regardless of commands, which never change spec', async () => {
      const { profile } = await makeFleet(2);
      const package_ = await makePackage(profile);
      const name = unique('held');
      await kubectl.apply(makeRollout(name, profile, package_, { paused: true }));
      const held = await untilPhase(name, 'Paused');
      const rolloutId = held.status!.rolloutId!;
      expect(held.status?.counts?.scheduled).to.equal(0);
      const failure = await admin.post(`/api/v1/ota/rollouts/${rolloutId}/resume`).catch((error: unknown) => error);
      expect((failure as RestError).code).to.equal('FAILED_PRECONDITION');
      await kubectl.run(['patch', 'otaro', name, '--type=json', '--patch=[{"op":"remove","path":"/spec/paused"}]']);
      await untilPhase(name, 'Active');
      const before = await get<OtaRollout>('otaro', name);
      await admin.post(`/api/v1/ota/rollouts/${rolloutId}/pause`);
      const paused = await untilPhase(name, 'Paused', 5);
      expect(paused.status?.pauseConditions?.map(({ reason }) => reason)).to.deep.equal(['OperatorPause']);
      await admin.post(`/api/v1/ota/rollouts/${rolloutId}/resume`, { canary_percent: 100 });
      const raised = await untilRollout(name, 'raised', ({ status }) => status?.counts?.scheduled === 2, 5);
      expect(raised.status?.control?.expandedToPercent).to.equal(100);
      expect(raised.spec).to.deep.equal(before.spec);
      expect(raised.metadata.generation).to.equal(before.metadata.generation);
      await admin.post(`/api/v1/ota/rollouts/${rolloutId}/cancel`);
      expect((await untilPhase(name, 'Completed')).status?.outcome).to.equal('Cancelled');
    });

    it('runs one rollout per profile and type at a time', async () => {
      const { profile } = await makeFleet(1);
      const package_ = await makePackage(profile);
      const [first, second] = [unique('first'), unique('second')];
      await kubectl.apply(makeRollout(first, profile, package_));
      await untilPhase(first, 'Active');
      await kubectl.apply(makeRollout(second, profile, package_));
      await untilCondition('otaro', second, 'Accepted', 'False RolloutInProgress');
      await kubectl.run(['delete', 'otaro', first, '--timeout=30s']);
      await untilPhase(second, 'Active', 10);
      await kubectl.run(['delete', 'otaro', second, '--timeout=30s']);
    });

    it('continues after the operator is killed, and writes nothing if nothing changes', async () => {
      const { profile, devices } = await makeFleet(4);
      const package_ = await makePackage(profile);
      const name = unique('killed');
      await kubectl.apply(makeRollout(name, profile, package_, { canaryPercent: 25, steps: [{ percent: 100 }] }));
      const { status } = await untilRollout(name, 'canary', (found) => found.status?.counts?.scheduled === 1);
      await stack().kill('operator');
      await report(devices, status!.rolloutId!, package_.version, 'success');
      await stack().waitReady('operator');
      await untilRollout(name, 'expanded', (found) => found.status?.counts?.scheduled === 4, 60);
      const scheduled = await Promise.all(devices.map(assignment));
      expect(scheduled.filter((id) => id === status!.rolloutId)).to.have.length.at.least(3);

      const reconciles = async (): Promise<number> => {
        const text = await (await fetch(`${stack().operatorMetrics}/metrics`)).text();
        const lines = text.matchAll(
          /controller_runtime_reconcile_total\{controller="otarollout",result="\w+"\} (\d+)/g,
        );
        return [...lines].reduce((sum, [, count]) => sum + Number(count), 0);
      };
      const before = await reconciles();
      await kubectl.run(['annotate', 'otaro', name, 'touched=1']);
      const { metadata } = await get('otaro', name);
      await waitUntil(async () => (await reconciles()) > before, { what: 'a further reconcile' });
      expect((await get('otaro', name)).metadata.resourceVersion).to.equal(metadata.resourceVersion);
      await kubectl.run(['delete', 'otaro', name, '--timeout=30s']);
    });
  });

  describe('outages', () => {
    it('reports an unavailable data plane, and catches up afterwards', async () => {
      const name = unique('away');
      const control = stack().isSplit ? 'services' : 'apiserver';
      await stack().stopProcess(control);
      try {
        await kubectl.apply(make('DeviceProfile', name, { type: name }));
        await untilCondition('dprof', name, 'Ready', 'Unknown DataPlaneUnavailable');
      } finally {
        await stack().startProcess(control);
      }
      await kubectl.wait(`dprof/${name}`, 'condition=Ready', 30);
    });

    it('catches up after a restart of the Kubernetes API', async () => {
      const name = unique('restarted');
      await kubectl.apply(make('DeviceProfile', name, { type: name }));
      await kubectl.wait(`dprof/${name}`, 'condition=Ready');
      const pid = stack().info.pids.operator;
      await stack().kill('kube-apiserver');
      await stack().waitReady('kube-apiserver');
      await kubectl.run(['patch', 'dprof', name, '--type=merge', '--patch={"spec":{"offlineAfterSeconds":77}}']);
      await waitUntil(async () => (await get('dprof', name)).status?.['observedGeneration'] === 2, {
        what: 'the edit is applied',
        timeoutMilliseconds: 60_000,
      });
      const id = (await get('dprof', name)).status?.['profileId'] as string;
      const shown = await admin.get<{ offline_after_seconds: number }>(`/api/v1/profiles/${id}`);
      expect(shown.offline_after_seconds).to.equal(77);
      expect(stack().info.pids.operator, 'the operator kept running').to.equal(pid);
    });

    it('exits when another holder takes its lease, and leads again once that one is silent', async () => {
      const pid = stack().info.pids.operator;
      const system = kubectl.in('kellet-system');
      const spec = { holderIdentity: 'another', leaseDurationSeconds: 3 };
      await system.run(['patch', 'lease', 'kellet-operator', '--type=merge', '-p', JSON.stringify({ spec })]);
      await waitUntil(() => stack().info.pids.operator !== pid, { what: 'another process' });
      const log = await readFile(join(stack().logsFolder, 'operator.log'), 'utf8');
      expect(log).to.include('lost the lease');
      const holder = ['get', 'lease', 'kellet-operator', '-o', 'jsonpath={.spec.holderIdentity}'];
      await waitUntil(async () => (await system.run(holder)) === 'local-stack', { what: 'the operator leads again' });
      await stack().waitReady('operator');
    });

    it('releases its lease at shutdown', async () => {
      await stack().stopProcess('operator');
      try {
        const holder = ['get', 'lease', 'kellet-operator', '-o', 'jsonpath={.spec.holderIdentity}'];
        expect(await kubectl.in('kellet-system').run(holder)).to.equal('');
      } finally {
        await stack().startProcess('operator');
      }
    });

    it('runs only one of two operators', async () => {
      const { kubeconfig } = stack().info;
      const environment = {
        ...process.env,
        KUBECONFIG: kubeconfig,
        KELLET_CONTROL_ADDRESS: '127.0.0.1:1',
        KELLET_CONTROL_SECRET: 'invalid: a standby does not use it',
        KELLET_LEASE_NAMESPACE: 'kellet-system',
        KELLET_LISTEN_HOST: '127.0.0.1',
        KELLET_METRICS_PORT: '0',
      };
      const main = join(import.meta.dirname, '../../operator/src/main.ts');
      const standby = spawn(process.execPath, [main], { env: environment, stdio: ['ignore', 'ignore', 'pipe'] });
      try {
        let log = '';
        standby.stderr.on('data', (chunk: Buffer) => (log += chunk.toString()));
        const port = await waitUntil(() => /"port":(\d+)/.exec(log)?.[1], { what: 'the standby serves its health' });
        await waitUntil(async () => (await fetch(`http://127.0.0.1:${port}/readyz`)).status === 200, {
          what: 'it is ready',
        });
        const name = unique('two');
        await kubectl.apply(make('DeviceProfile', name, { type: name }));
        await kubectl.wait(`dprof/${name}`, 'condition=Ready');
        const metrics = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
        expect(metrics).to.match(/leader_election_master_status\{name="kellet-operator"\} 0/);
        expect(metrics).to.match(/reconcile_total\{controller="deviceprofile",result="success"\} 0/);
      } finally {
        standby.kill('SIGTERM');
      }
      const code = await new Promise((resolve) => standby.once('exit', resolve));
      expect(code, 'a standby exits normally').to.equal(0);
    });
  });

  it('allows deleting a namespace with its resources, and recreates it', async () => {
    const { profile, devices } = await makeFleet(1);
    const package_ = await makePackage(profile);
    const name = unique('last');
    await kubectl.apply(makeRollout(name, profile, package_));
    await untilPhase(name, 'Active');
    const { uid } = (await kubectl.json<Resource>(['get', 'namespace', namespace])).metadata;
    await kubectl.run(['delete', 'namespace', namespace, '--timeout=60s']);
    await waitUntil(async () => (await kubectl.json<Resource>(['get', 'namespace', namespace])).metadata.uid !== uid, {
      what: 'a new namespace',
    });
    await kubectl.wait(`ktenant/${tenant}`, 'condition=Ready');
    const [{ id, rest }] = devices as [Device];
    const known = await admin.post<{ valid: boolean; device_id: string }>('/api/v1/auth/validate', {
      token: rest.token,
    });
    expect(known, 'devices and their keys survive the namespace').to.deep.include({ valid: true, device_id: id });
    // The account keeps its password, so no Secret may say that it has another.
    expect(await condition('ktenant', tenant, 'ReferencesResolved')).to.equal('True SecretGone');
    const names = await kubectl.run(['get', 'secrets', '-o', 'name']);
    expect(names).not.to.contain(`${tenant}-admin`);
  });
});
