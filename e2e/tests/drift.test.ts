// Drift: data changed or deleted in the data plane is restored from its resource, data without a resource is removed,
// and both sides converge after an outage.
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  apiVersion,
  type Condition,
  type DeviceProfile,
  displayNameAnnotation,
  type OtaPackage as OtaPackageResource,
  type OtaRollout,
  type ProvisioningTemplate,
} from '@kellet/crds';
import { expect } from 'chai';
import pg from 'pg';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest, type RestError } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { ControlClient, isOvertaken } from '../../operator/src/data-plane.ts';
import { toMeta } from '../../operator/src/messages.ts';
import { controlKinds } from '../../operator/src/resources.ts';
import { systemClock } from '../../operator/src/runtime/clock.ts';
import { createLogger } from '../../operator/src/runtime/logger.ts';
import { makeArtifact, type OtaPackage, type Profile, type Rollout, unique } from '../testing/fixtures.ts';

describe('drift', function () {
  this.timeout(120_000);
  const tenant = `drift-${randomBytes(3).toString('hex')}`;
  const namespace = `kellet-${tenant}`;
  let kubectl: Kubectl;
  let rest: Rest;
  let database: pg.Client;

  const make = (kind: string, name: string, spec: object) => ({ apiVersion, kind, metadata: { name }, spec });
  const until = (what: string, holds: () => Promise<boolean>) =>
    waitUntil(holds, { what, timeoutMilliseconds: 20_000, intervalMilliseconds: 200 });
  const rowCount = async (sql: string, values: unknown[]): Promise<number> =>
    (await database.query<{ count: number }>(`SELECT count(*)::int4 AS count ${sql}`, values)).rows[0]!.count;
  const metric = async (pattern: RegExp): Promise<number> => {
    const text = await (await fetch(`${stack().operatorMetrics}/metrics`)).text();
    return [...text.matchAll(pattern)].reduce((sum, [, value]) => sum + Number(value), 0);
  };

  /** Creates a ready resource of each kind. */
  const makeAll = async () => {
    const name = unique('drift');
    const artifact = await makeArtifact(5000);
    const { uri, sha256, sizeBytes } = artifact;
    await kubectl.apply(
      make('DeviceProfile', name, { type: name, defaultTags: { site: 'north' } }),
      make('ProvisioningTemplate', name, { profileRef: { name }, hardwareIdPattern: 'pump-*' }),
      make('OtaPackage', name, { type: 'Firmware', version: '1.0.0', artifact: { uri, sha256, sizeBytes } }),
      make('OtaRollout', name, {
        packageRef: { name },
        targetProfileRef: { name },
        canaryPercent: 10,
        failureThresholdPercent: 20,
      }),
    );
    await kubectl.wait([`dprof/${name}`, `ptmpl/${name}`, `otapkg/${name}`], 'condition=Ready');
    await kubectl.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Active');
    return { name, artifact };
  };

  before(async () => {
    kubectl = new Kubectl(await stack().kubectl(), stack().info.kubeconfig, namespace);
    await kubectl.apply(make('Tenant', tenant, { adminEmail: `admin@${tenant}.test` }));
    await kubectl.wait(`ktenant/${tenant}`, 'condition=Ready');
    const { data } = await kubectl.json<{ data: Record<string, string> }>(['get', 'secret', `${tenant}-admin`]);
    const password = Buffer.from(data['password']!, 'base64').toString();
    rest = await Rest.login(stack().info.rest, { email: `admin@${tenant}.test`, password });
    database = new pg.Client({ connectionString: stack().info.databaseUrl });
    await database.connect();
  });

  after(async () => {
    await database.end();
    await kubectl.run(['delete', 'ktenant', tenant, '--wait=false']);
  });

  it('restores data changed or deleted in the data plane, once', async () => {
    const { name, artifact } = await makeAll();
    const key = [tenant, name];
    const statements: [what: string, change: string, back: string][] = [
      [
        'a modified profile',
        `UPDATE profiles SET document = '{"type": "other"}' WHERE tenant_id = $1 AND resource_name = $2`,
        `FROM profiles WHERE tenant_id = $1 AND resource_name = $2 AND document ->> 'type' = $2`,
      ],
      [
        'a modified template',
        `UPDATE provisioning_templates SET hardware_id_pattern = '*' WHERE tenant_id = $1 AND resource_name = $2`,
        `FROM provisioning_templates WHERE tenant_id = $1 AND resource_name = $2 AND hardware_id_pattern = 'pump-*'`,
      ],
      [
        'a deleted template',
        `DELETE FROM provisioning_templates WHERE tenant_id = $1 AND resource_name = $2`,
        `FROM provisioning_templates WHERE tenant_id = $1 AND resource_name = $2`,
      ],
      [
        'the modified policy of a rollout',
        `UPDATE ota_rollouts SET spec = spec || '{"failureThresholdPercent": 100}' WHERE tenant_id = $1 AND name = $2`,
        `FROM ota_rollouts WHERE tenant_id = $1 AND name = $2 AND spec ->> 'failureThresholdPercent' = '20'`,
      ],
      [
        'a deleted rollout',
        `DELETE FROM ota_rollouts WHERE tenant_id = $1 AND name = $2`,
        `FROM ota_rollouts WHERE tenant_id = $1 AND name = $2 AND phase = 'active'`,
      ],
      [
        'a deleted package',
        `DELETE FROM ota_packages WHERE tenant_id = $1 AND name = $2`,
        `FROM ota_packages WHERE tenant_id = $1 AND name = $2 AND status = 'available'`,
      ],
    ];
    for (const [what, change, back] of statements) {
      expect((await database.query(change, key)).rowCount, what).to.equal(1);
      expect(await rowCount(back, key), what).to.equal(0);
      await until(`${what} is restored`, async () => (await rowCount(back, key)) === 1);
    }
    await database.query('DELETE FROM artifacts WHERE tenant_id = $1', [tenant]);
    const stored = `FROM artifacts WHERE tenant_id = $1 AND sha256 = decode($2, 'hex')`;
    await until('the artifact is fetched again', async () => (await rowCount(stored, [tenant, artifact.sha256])) === 1);
    await kubectl.wait(`otapkg/${name}`, 'condition=Verified');

    // No writes once everything agrees, even if a row could not be restored.
    const found = /kellet_operator_drift_total\{.*\} (\d+)/g;
    await database.query(`UPDATE ota_packages SET version = '6.6.6' WHERE tenant_id = $1 AND name = $2`, key);
    await kubectl.wait(`otapkg/${name}`, 'condition=Stalled');
    const before = await metric(found);
    await new Promise((resolve) => setTimeout(resolve, 2000));
    expect(await metric(found)).to.equal(before);
  });

  it('never applies an older version of a resource over a newer one', async () => {
    const { name } = await makeAll();
    const secret = await readFile(join(dirname(stack().infoPath), 'secrets/control-secret'), 'utf8');
    const logger = createLogger('silent');
    const dataPlane = new ControlClient({
      address: stack().control,
      secret: secret.trim(),
      clock: systemClock,
      logger,
    });
    const read = <T>(kind: string) => kubectl.json<T>(['get', kind, name]);
    const older = await Promise.all([
      read<DeviceProfile>('dprof'),
      read<ProvisioningTemplate>('ptmpl'),
      read<OtaPackageResource>('otapkg'),
      read<OtaRollout>('otaro'),
    ]);
    const [profile, template, package_, rollout] = older;
    const paths = [
      `/api/v1/profiles/${profile.status?.profileId}`,
      `/api/v1/provisioning/templates/${template.status?.templateId}`,
      `/api/v1/ota/packages/${package_.status?.packageId}`,
      `/api/v1/ota/rollouts/${rollout.status?.rolloutId}`,
    ];
    const names = () => Promise.all(paths.map(async (path) => (await rest.get<{ name: string }>(path)).name));
    const renamed = `${name} renamed`;
    for (const path of paths.slice(0, 3)) await rest.send('PATCH', path, { body: { name: renamed } });
    await kubectl.run(['annotate', 'otaro', name, `${displayNameAnnotation}=${renamed}`]);
    await until('all are renamed', async () => (await names()).every((is) => is === renamed));
    // Simulates a concurrent reconcile of the operator.
    try {
      for (const object of older) {
        const applying = dataPlane.apply({
          meta: toMeta(tenant, object),
          dry_run: false,
          kind: controlKinds[object.kind],
          spec: object.spec,
        });
        const ending = await applying.catch((error: unknown) => error);
        expect(isOvertaken(ending), `${object.kind}: ${String(ending)}`).to.equal(true);
      }
    } finally {
      dataPlane.close();
    }
    expect(await names()).to.deep.equal([renamed, renamed, renamed, renamed]);
  });

  it('mirrors creations and deletions between REST and Kubernetes', async () => {
    const [byRest, byKubectl] = [unique('rest'), unique('kubectl')];
    const { profile_id } = await rest.post<Profile>('/api/v1/profiles', { name: byRest, type: byRest });
    await kubectl.wait(`dprof/${byRest}`, 'condition=Ready');
    await kubectl.apply(make('DeviceProfile', byKubectl, { type: byKubectl }));
    await kubectl.wait(`dprof/${byKubectl}`, 'condition=Ready');
    const { status } = await kubectl.json<DeviceProfile>(['get', 'dprof', byKubectl]);
    expect((await rest.get<Profile>(`/api/v1/profiles/${status!.profileId}`)).name).to.equal(byKubectl);

    await kubectl.run(['delete', 'dprof', byRest, '--timeout=20s']);
    expect((await rest.send('GET', `/api/v1/profiles/${profile_id}`)).status).to.equal(404);
    // Resources managed with kubectl must be deleted there; REST names the manager.
    const refused = await rest.delete(`/api/v1/profiles/${status!.profileId}`).catch((error: RestError) => error);
    expect((refused as RestError).message).to.match(/managed by/);

    const again = await rest.post<Profile>('/api/v1/profiles', { name: byRest, type: byRest });
    expect(again.profile_id, 'the same name has the same id').to.equal(profile_id);
    await rest.delete(`/api/v1/profiles/${profile_id}`);
    expect(await kubectl.run(['get', 'dprof', byRest, '--ignore-not-found'])).to.equal('');
  });

  it('serves while the Kubernetes API is unavailable, rejects creations, and converges afterwards', async () => {
    const { name } = await makeAll();
    const { status } = await kubectl.json<OtaRollout>(['get', 'otaro', name]);
    const rollout = `/api/v1/ota/rollouts/${status!.rolloutId}`;
    const orphanName = unique('unmade');
    await stack().stopProcess('kube-apiserver');
    try {
      const response = await rest.send('POST', '/api/v1/profiles', { body: { name: orphanName, type: 'pump' } });
      expect(response.status).to.equal(503);
      expect(response.body).to.include({ code: 'UNAVAILABLE' });
      expect((await rest.post<Rollout>(`${rollout}/pause`)).status, 'commands still work').to.equal('paused');
    } finally {
      await stack().startProcess('kube-apiserver');
    }
    await until('the pause is mirrored', async () => {
      const { status: seen, spec } = await kubectl.json<OtaRollout>(['get', 'otaro', name]);
      expect(spec).to.not.have.property('paused');
      return seen?.phase === 'Paused' && seen.pauseConditions?.[0]?.reason === 'OperatorPause';
    });
    const { profiles } = await rest.get<{ profiles: Profile[] }>('/api/v1/profiles', { page_size: 500 });
    expect(profiles.map((profile) => profile.name)).to.not.include(orphanName);
    expect(await kubectl.run(['get', 'dprof', orphanName, '--ignore-not-found'])).to.equal('');
    await rest.post<Profile>('/api/v1/profiles', { name: orphanName, type: 'pump' });
  });

  it('removes data whose resource was deleted unnoticed, with its finalizer removed by force', async () => {
    const { name } = await makeAll();
    const { status } = await kubectl.json<OtaRollout>(['get', 'otaro', name]);
    const template = (await kubectl.json<ProvisioningTemplate>(['get', 'ptmpl', name])).status!.templateId!;
    await stack().stopProcess('operator');
    try {
      for (const kind of ['otaro', 'ptmpl']) {
        await kubectl.run(['delete', kind, name, '--wait=false']);
        await kubectl.run(['patch', kind, name, '--type=merge', '-p', '{"metadata":{"finalizers":null}}']);
        await kubectl.run(['wait', '--for=delete', `${kind}/${name}`, '--timeout=20s']);
      }
    } finally {
      await stack().startProcess('operator');
    }
    const rollout = () => rest.get<Rollout>(`/api/v1/ota/rollouts/${status!.rolloutId}`);
    expect((await rollout()).status, 'not removed before the grace period').to.equal('active');
    const cancelled = async () => (await rollout()).outcome === 'cancelled';
    const timeoutMilliseconds = 60_000;
    await waitUntil(cancelled, { what: 'the rollout is cancelled', timeoutMilliseconds, intervalMilliseconds: 500 });
    const gone = async () => (await rest.send('GET', `/api/v1/provisioning/templates/${template}`)).status === 404;
    await waitUntil(gone, { what: 'the template is removed', timeoutMilliseconds, intervalMilliseconds: 500 });
  });

  it('keeps resources that lose their tenant, and resumes when the label is restored', async () => {
    const { name } = await makeAll();
    const ready = async (): Promise<Condition | undefined> =>
      (await kubectl.json<DeviceProfile>(['get', 'dprof', name])).status?.conditions?.find(
        ({ type }) => type === 'Ready',
      );
    await kubectl.run(['label', 'namespace', namespace, 'kellet.dev/tenant-']);
    await until('it has no tenant', async () => (await ready())?.reason === 'NoTenant');
    const { status } = await kubectl.json<OtaRollout>(['get', 'otaro', name]);
    const rollout = () => rest.get<Rollout>(`/api/v1/ota/rollouts/${status!.rolloutId}`);
    expect((await rollout()).status).to.equal('active');
    // Resources deleted in the meantime are removed from the former tenant's data.
    await kubectl.run(['delete', 'otaro', name]);
    expect(await rollout()).to.include({ status: 'completed', outcome: 'cancelled' });
    await kubectl.run(['label', 'namespace', namespace, `kellet.dev/tenant=${tenant}`]);
    await kubectl.wait(`dprof/${name}`, 'condition=Ready');
    const { packages } = await rest.get<{ packages: OtaPackage[] }>('/api/v1/ota/packages', { page_size: 500 });
    expect(packages.length).to.be.greaterThan(0);
  });
});
