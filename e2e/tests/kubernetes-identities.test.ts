// Kubernetes identities at the gateway: exactly the permissions that RBAC grants in the tenant's namespace.
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest, type RestResponse } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl, makeFleet, makePackage, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

const rbac = 'rbac.authorization.k8s.io';

describe('a Kubernetes identity', () => {
  let kube: Kubectl;
  let rolloutId: string;

  /**
   * Creates a service account with these rules in a namespace, by default the tenant's. Returns its user name and a
   * client.
   */
  const account = async (rules: object[], options: { home?: string; namespace?: string } = {}) => {
    const name = unique('someone');
    const { home = kube.namespace, namespace = kube.namespace } = options;
    await kube.in(home).apply({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name } });
    await kube.in(namespace).apply(
      { apiVersion: `${rbac}/v1`, kind: 'Role', metadata: { name }, rules },
      {
        apiVersion: `${rbac}/v1`,
        kind: 'RoleBinding',
        metadata: { name },
        roleRef: { apiGroup: rbac, kind: 'Role', name },
        subjects: [{ kind: 'ServiceAccount', name, namespace: home }],
      },
    );
    const token = await kube.in(home).run(['create', 'token', name, '--audience', 'kellet']);
    const rest = new Rest(stack().info.rest, token);
    const send = <Body = { code?: string; message?: string }>(
      method: string,
      path: string,
      headers: Record<string, string> = {},
    ): Promise<RestResponse<Body>> => rest.send<Body>(method, `/api/v1/${path}`, { headers });
    return { name, username: `system:serviceaccount:${home}:${name}`, token, send };
  };
  const rule = (resources: string[], verbs: string[]) => ({ apiGroups: ['kellet.dev'], resources, verbs });

  before(async () => {
    kube = await kubectl();
    const rest = await admin();
    const profile = await makeProfile(rest);
    await makeFleet(rest, profile.profile_id, 2);
    const { package_id } = await makePackage(rest, { version: '1.0.0' });
    const body = { package_id, target_profile_id: profile.profile_id, canary_percent: 50, name: unique('rollout') };
    rolloutId = (await rest.post<Rollout>('/api/v1/ota/rollouts', body)).rollout_id;
  });

  it('may not go on with an upload after RBAC has taken its permission away', async function () {
    this.timeout(40_000);
    const sizeBytes = 16 * 1024 * 1024;
    const artifact = { uri: 'upload://', sha256: 'ab'.repeat(32), sizeBytes } as Parameters<typeof makePackage>[2];
    const { package_id } = await makePackage(await admin(), { version: '3.0.0' }, artifact);
    const someone = await account([rule(['otapackages/upload'], ['create'])]);
    let begun = 0;
    const body = new ReadableStream({
      async pull(controller) {
        // As slowly as an upload may be.
        if (begun > 0) await sleep(100);
        controller.enqueue(new Uint8Array(4096));
        begun += 1;
      },
    });
    const upload = fetch(`${stack().info.rest}/api/v1/ota/packages/${package_id}/artifact`, {
      ...{ method: 'PUT', body, duplex: 'half' },
      headers: { authorization: `Bearer ${someone.token}`, 'content-type': 'application/octet-stream' },
    });
    await waitUntil(() => begun > 10, { what: 'the upload to begin' });
    await kube.run(['delete', 'rolebinding', someone.name]);
    const response = await upload;
    expect([response.status, ((await response.json()) as { code: string }).code]).to.deep.equal([
      403,
      'PERMISSION_DENIED',
    ]);
  });

  it('may do exactly what RBAC grants it in the namespace', async () => {
    const someone = await account([rule(['otarollouts/pause'], ['create']), rule(['otarollouts'], ['get'])]);
    const paused = await someone.send<Rollout>('POST', `ota/rollouts/${rolloutId}/pause`);
    expect(paused.body).to.include({ status: 'paused' });
    expect(paused.headers.get('x-ratelimit-remaining')).to.match(/^\d+$/);
    expect((await someone.send('GET', `ota/rollouts/${rolloutId}`)).status).to.equal(200);
    for (const [method, path] of [
      ['POST', `ota/rollouts/${rolloutId}/resume`],
      ['POST', `ota/rollouts/${rolloutId}/rollback`],
      ['GET', 'ota/rollouts'],
      ['GET', 'devices'],
      ['GET', 'verify/proofs'],
    ] as const) {
      const { status, body } = await someone.send(method, path);
      expect(status, path).to.equal(403);
      expect(body.message, path).to.contain(someone.username);
    }
    // No permission allows this: managing users and keys and sending commands require a sign-in.
    for (const [method, path] of [
      ['GET', 'auth/users'],
      ['POST', 'auth/api-keys'],
      ['POST', 'ota/packages'],
      ['DELETE', `devices/${rolloutId}`],
    ] as const) {
      const { body } = await someone.send(method, path);
      expect(body, path).to.include({ message: 'a Kubernetes identity may not call this method' });
    }
  });

  it('is named in the audit log and in the status of affected rollouts', async () => {
    const someone = await account([rule(['otarollouts/pause', 'otarollouts/resume'], ['create'])]);
    expect((await someone.send('POST', `ota/rollouts/${rolloutId}/resume`)).status).to.equal(200);
    expect((await someone.send('POST', `ota/rollouts/${rolloutId}/pause`)).status).to.equal(200);
    const { items } = await kube.json<{
      items: { metadata: { name: string }; status?: { rolloutId?: string } }[];
    }>(['get', 'otarollouts']);
    const { metadata } = items.find(({ status }) => status?.rolloutId === rolloutId)!;
    await kube.wait(`otaro/${metadata.name}`, `jsonpath={.status.pauseConditions[0].by}=${someone.username}`);
    const log = await readFile(join(stack().logsFolder, 'apiserver.log'), 'utf8');
    const lines = log
      .split('\n')
      .filter((line) => line.includes(someone.username))
      .map((line) => JSON.parse(line) as Record<string, string>);
    expect(lines.map(({ msg, code }) => `${msg} ${code}`)).to.deep.equal(['ResumeRollout OK', 'PauseRollout OK']);
    const [line] = lines;
    expect(line).to.include({ audit: 'kubernetes', rollout_id: rolloutId, permission: 'create otarollouts/resume' });
    // The cluster's audit log has this id with the name of the person who requested the token.
    expect(line!['credential_id']).to.match(/^JTI=[0-9a-f-]{36}$/);
  });

  it('may act in another namespace only with a RoleBinding there', async () => {
    const visitor = await account([rule(['devices'], ['list'])], { home: 'kellet-system' });
    expect((await visitor.send('GET', 'devices')).status, 'its own namespace is no tenant’s').to.equal(403);
    const there = { 'x-kellet-namespace': kube.namespace };
    expect((await visitor.send('GET', 'devices', there)).status).to.equal(200);
    const foreign = await visitor.send('GET', 'devices', {
      'x-kellet-namespace': `kellet-${stack().info.other.tenant}`,
    });
    expect(foreign.status).to.equal(403);
    // A caller without permissions in a tenant neither sees nor uses its request window.
    expect(foreign.headers.get('x-ratelimit-remaining')).to.equal(null);
    const rest = await admin();
    const { body } = await rest.send<{ devices: unknown[] }>('GET', '/api/v1/devices', {
      headers: { 'x-kellet-namespace': `kellet-${stack().info.other.tenant}` },
    });
    expect(body.devices, 'the header means nothing with another credential').to.have.length.above(0);
  });

  it('is rejected without a token for Kellet, or once its account is deleted', async () => {
    const someone = await account([rule(['devices', 'otarollouts'], ['list'])]);
    for (const audience of [[], ['--audience', 'https://kubernetes.default.svc.cluster.local'], ['--audience', 'x']]) {
      const token = await kube.run(['create', 'token', someone.name, ...audience]);
      const { status } = await new Rest(stack().info.rest, token).send('GET', '/api/v1/devices');
      expect(status, audience.join(' ')).to.equal(401);
    }
    const token = await kube.run(['create', 'token', someone.name, '--audience', 'kellet']);
    const [header, claims, signature] = token.split('.') as [string, string, string];
    const flipped = (text: string) => (text.startsWith('A') ? 'B' : 'A') + text.slice(1);
    for (const forged of [`${header}.${claims}.${flipped(signature)}`, `${header}.${claims}.`]) {
      expect((await new Rest(stack().info.rest, forged).send('GET', '/api/v1/devices')).status).to.equal(401);
    }
    expect((await someone.send('GET', 'devices')).status).to.equal(200);
    await kube.run(['delete', 'serviceaccount', someone.name]);
    await waitUntil(async () => (await someone.send('GET', 'ota/rollouts')).status === 401, { what: 'the refusal' });
  });

  it('gets the aggregated permissions through view, edit and admin', async () => {
    const may = async (role: string, verb: string, what: string) => {
      const user = unique(role);
      await kube.run(['create', 'rolebinding', user, '--clusterrole', role, '--user', user]);
      const [resource, subresource] = what.split('/');
      const resourceAttributes = { group: 'kellet.dev', namespace: kube.namespace, verb, resource, subresource };
      const review = { apiVersion: 'authorization.k8s.io/v1', kind: 'SubjectAccessReview' };
      const asked = JSON.stringify({ ...review, spec: { user, resourceAttributes } });
      return (await kube.run(['create', '-f', '-', '-o', 'jsonpath={.status.allowed}'], asked)) === 'true';
    };
    for (const [role, verb, what, want] of [
      ['view', 'list', 'proofs', true],
      ['view', 'get', 'otarollouts/devices', true],
      ['view', 'create', 'otarollouts', false],
      ['view', 'create', 'otarollouts/pause', false],
      ['edit', 'create', 'otarollouts/rollback', true],
      ['edit', 'create', 'otapackages/upload', true],
      ['edit', 'create', 'otarollouts', true],
      ['edit', 'list', 'devices', true],
      ['admin', 'delete', 'otapackages', true],
    ] as const) {
      expect(await may(role, verb, what), `${role} ${verb} ${what}`).to.equal(want);
    }
  });
});
