// Sends every field of every custom resource through the real operator and data plane: from kubectl to REST, from REST
// to the resource, and back in the status. Fails if a definition has a field that the samples do not set.
import { generateKeyPairSync, randomBytes, sign } from 'node:crypto';
import { toJson } from '@bufbuild/protobuf';
import { apiVersion, type Kind } from '@kellet/crds';
import { expect } from 'chai';
import { requestOf, requestSchemas, type Specs } from '../../apiserver/src/control/manifest-mapping.ts';
import { kinds, pathsIn, schemaOf, specOnly } from '../../crds/testing/test-schemas.ts';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { makeArtifact, platformAdmin, unique } from '../testing/fixtures.ts';

type Fields = Record<string, unknown>;
interface Resource {
  spec: Fields;
  status?: Fields;
}

/** Path of each collection, and names of the id field in the status and in REST. */
const places: Readonly<Record<Kind, { path: string; statusId?: string }>> = {
  Tenant: { path: '/api/v1/tenants' },
  DeviceProfile: { path: '/api/v1/profiles', statusId: 'profileId' },
  ProvisioningTemplate: { path: '/api/v1/provisioning/templates', statusId: 'templateId' },
  OtaPackage: { path: '/api/v1/ota/packages', statusId: 'packageId' },
  OtaRollout: { path: '/api/v1/ota/rollouts', statusId: 'rolloutId' },
};

/** Fields of requests that are not part of the resource. */
const notShown = ['admin_email', 'admin_password'];

/** Returns the paths at which an object differs from another one or lacks its value. */
function* differing(actual: unknown, expected: unknown, path = ''): Generator<string> {
  if (Array.isArray(expected) && Array.isArray(actual) && actual.length === expected.length) {
    for (const [index, item] of expected.entries()) yield* differing(actual[index], item, `${path}[${index}]`);
  } else if (typeof expected === 'object' && expected !== null && typeof actual === 'object' && actual !== null) {
    for (const [name, value] of Object.entries(expected)) {
      yield* differing((actual as Fields)[name], value, path === '' ? name : `${path}.${name}`);
    }
  } else if (actual !== expected) yield `${path}: ${JSON.stringify(actual)} instead of ${JSON.stringify(expected)}`;
}

/** The keys of maps in the samples. */
const mapKeys = ['site', 'level', 'state'];

/** Yields the paths of an object, with list entries as [0] and map entries as someKey. */
function* present(value: unknown, at = ''): Generator<string> {
  if (Array.isArray(value)) for (const item of value) yield* present(item, `${at}[0]`);
  else if (typeof value === 'object' && value !== null) {
    for (const [name, field] of Object.entries(value)) {
      const key = mapKeys.includes(name) ? 'someKey' : name;
      const path = at === '' ? key : `${at}.${key}`;
      yield path;
      yield* present(field, path);
    }
  }
}

describe('every field of every custom resource', function () {
  this.timeout(120_000);
  const tenant = unique('fields');
  const { publicKey, privateKey } = generateKeyPairSync('ed25519');
  const window = {
    start: '22:00',
    end: '04:30',
    days: ['Monday' as const, 'Sunday' as const],
    timeZone: 'Europe/Berlin',
  };
  const telemetrySchema = {
    keys: {
      level: { type: 'Number' as const, required: true, min: -40, max: 85, unit: '°C' },
      state: { type: 'String' as const, enum: ['on', 'off'], maxLength: 3 },
    },
    additionalKeys: 'Reject' as const,
  };
  const otaPolicy = { deviceTimeoutSeconds: 600, maxAttempts: 3, window, requireSignature: true };
  const tenantSpec: Specs['Tenant'] = {
    mfaRequired: false,
    name: 'Every field',
    adminEmail: `admin@${tenant}.test`,
    rateLimitPerMinute: 100_000,
    quotas: { devices: 5, pointsPerDay: 6, storageBytes: 10_000_000, anchorsPerDay: 7 },
    ipAllowlist: ['0.0.0.0/0', '::/0'],
    defaults: {
      tags: { site: 'north' },
      telemetrySchema,
      otaPolicy,
      offlineAfterSeconds: 60,
      anchoringPolicy: { mode: 'PerEvent' },
    },
    retentionDays: 3650,
    batchSeconds: 60,
    trustedSigningKeys: [publicKey.export({ format: 'pem', type: 'spki' }).toString()],
  };
  let kubectl: Kubectl;
  let rest: Rest;
  let root: Rest;
  /** Paths that occurred in a sample or status, as Kind.spec.path. */
  const seen = new Set<string>();
  const note = (kind: Kind, part: 'spec' | 'status', value: unknown) => {
    for (const path of present(value)) seen.add(`${kind}.${part}.${path}`);
  };
  const read = async (kind: Kind, name: string): Promise<Resource> => {
    const resource = await kubectl.json<Resource>(['get', kind.toLowerCase(), name]);
    note(kind, 'status', resource.status);
    return resource;
  };
  const requestJson = <K extends Kind>(kind: K, spec: Specs[K]): Fields =>
    toJson(requestSchemas[kind], requestOf(kind, spec) as never, { useProtoFieldName: true }) as Fields;

  /** Applies a spec with kubectl. Returns the resource and its REST representation, which must have every field. */
  async function apply<K extends Kind>(kind: K, name: string, spec: Specs[K], condition = 'condition=Ready') {
    await kubectl.apply({ apiVersion, kind, metadata: { name }, spec });
    await kubectl.wait(`${kind.toLowerCase()}/${name}`, condition);
    note(kind, 'spec', spec);
    const { path, statusId } = places[kind];
    const { status = {} } = await read(kind, name);
    const id = statusId ? String(status[statusId]) : name;
    const shown = await (kind === 'Tenant' ? root : rest).get<Fields>(`${path}/${id}`);
    const expected = Object.entries(requestJson(kind, spec)).filter(([field]) => !notShown.includes(field));
    expect([...differing(shown, Object.fromEntries(expected))], `${kind} in REST`).to.deep.equal([]);
    return { id, shown };
  }

  /** Creates a resource through REST from a spec; the custom resource must have every field. */
  async function create<K extends Kind>(kind: K, name: string, spec: Specs[K], more: Fields): Promise<Resource> {
    await (kind === 'Tenant' ? root : rest).post(places[kind].path, { name, ...requestJson(kind, spec), ...more });
    const resource = await kubectl.json<Resource>(['get', kind.toLowerCase(), name]);
    const expected = Object.entries(spec).filter(([field]) => !specOnly[kind].includes(field));
    expect([...differing(resource.spec, Object.fromEntries(expected))], `${kind} in Kubernetes`).to.deep.equal([]);
    return resource;
  }

  before(async () => {
    root = await platformAdmin();
    kubectl = new Kubectl(await stack().kubectl(), stack().info.kubeconfig, `kellet-${tenant}`);
    await apply('Tenant', tenant, tenantSpec);
    const { data } = await kubectl.json<{ data: { password: string } }>(['get', 'secret', `${tenant}-admin`]);
    const password = Buffer.from(data.password, 'base64').toString();
    rest = await Rest.login(stack().info.rest, { email: tenantSpec.adminEmail!, password });
  });

  after(async () => {
    const tenants = [tenant, `${tenant}-rest`];
    await kubectl.run(['delete', 'ktenant', ...tenants, '--ignore-not-found', '--wait=false']);
  });

  it('is carried from a Tenant to REST and back', async () => {
    const name = `${tenant}-rest`;
    const adminEmail = `admin@${name}.test`;
    const admin_password = randomBytes(18).toString('base64url');
    await create('Tenant', name, { ...tenantSpec, adminEmail, mfaRequired: true }, { tenant_id: name, admin_password });
  });

  it('is carried from a DeviceProfile to REST and back', async () => {
    const spec: Specs['DeviceProfile'] = {
      type: 'pump',
      defaultTags: { site: 'north' },
      anchoringPolicy: { mode: 'Chain' },
      telemetrySchema,
      otaPolicy,
      offlineAfterSeconds: 60,
    };
    await apply('DeviceProfile', 'by-kubectl', spec);
    await create('DeviceProfile', 'by-rest', spec, {});
  });

  it('is carried from a ProvisioningTemplate to REST and back', async () => {
    const { group_id } = await rest.post<{ group_id: string }>('/api/v1/device-groups', { name: unique('group') });
    const spec: Specs['ProvisioningTemplate'] = {
      profileRef: { name: 'by-kubectl' },
      hardwareIdPattern: 'AA-*',
      keyUse: 'Once',
      expiresInSeconds: 3600,
      credentialType: 'ApiKey',
      defaultGroups: [group_id],
      suspended: true,
    };
    const { shown } = await apply('ProvisioningTemplate', 'by-kubectl', spec);
    await create('ProvisioningTemplate', 'by-rest', spec, { profile_id: shown['profile_id'] });
  });

  it('is carried from an OtaPackage to REST and back', async () => {
    for (const version of ['1.0.0', '2.0.0']) {
      const { uri, sha256, sizeBytes } = await makeArtifact(2048);
      const signature = sign(null, Buffer.from(sha256, 'hex'), privateKey).toString('base64');
      const spec: Specs['OtaPackage'] = {
        type: 'Software',
        version,
        artifact: { uri, sha256, sizeBytes, signature },
        compatibility: { deviceType: 'pump', minVersion: '0.1.0', maxVersion: '3.0.0', hardwareIdPattern: 'AA-*' },
        releaseNotes: 'Fixes',
      };
      const name = `v${version.replaceAll('.', '-')}`;
      await apply('OtaPackage', name, spec);
      await create('OtaPackage', `${name}-rest`, spec, {});
    }
  });

  it('is carried from an OtaRollout to REST and back', async () => {
    const spec: Specs['OtaRollout'] = {
      packageRef: { name: 'v2-0-0' },
      targetProfileRef: { name: 'by-kubectl' },
      rollbackPackageRef: { name: 'v1-0-0' },
      canaryPercent: 20,
      failureThresholdPercent: 15,
      minFailures: 2,
      steps: [{ percent: 50, soakSeconds: 60, approval: true }],
      maxPerMinute: 30,
      deviceTimeoutSeconds: 500,
      maxAttempts: 4,
      window,
      paused: false,
      desiredState: 'Run',
    };
    const { id, shown } = await apply('OtaRollout', 'by-kubectl', spec, 'condition=Progressing');
    const untilStatus = (what: string, holds: (status: Fields) => boolean) =>
      waitUntil(async () => holds((await read('OtaRollout', 'by-kubectl')).status ?? {}), { what });
    await rest.post(`/api/v1/ota/rollouts/${id}/pause`, {});
    await untilStatus('paused', ({ phase }) => phase === 'Paused');
    await rest.post(`/api/v1/ota/rollouts/${id}/rollback`, {});
    await untilStatus('rolled back', ({ outcome }) => outcome === 'RolledBack');
    const { package_id, target_profile_id, rollback_package_id } = shown;
    await create('OtaRollout', 'by-rest', spec, { package_id, target_profile_id, rollback_package_id });
  });

  it('occurs in a sample or a status', () => {
    const missing = kinds.flatMap((kind) =>
      (['spec', 'status'] as const).flatMap((part) =>
        [...pathsIn(schemaOf(kind, part))]
          .filter((path) => part === 'status' || !specOnly[kind].some((only) => new RegExp(`^${only}\\b`).test(path)))
          .map((path) => `${kind}.${part}.${path}`)
          .filter((path) => !seen.has(path)),
      ),
    );
    expect(missing).to.deep.equal([]);
  });
});
