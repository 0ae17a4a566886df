// How much of the cluster's resources a process holds at a time, and for whom. With a real API server: e2e/tests/resource-writer.test.ts.
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { KubeConfig } from '@kellet/kubernetes';
import { expect } from 'chai';
import { method, TestAuth } from '../auth/testing/test-auth.ts';
import type { Dispatcher } from '../control/dispatcher.ts';
import { sleep } from '../platform/clock.ts';
import { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { internalContext, publicCaller } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { outcomeOf } from '../platform/testing/refusals.ts';
import type { TestDatabase } from '../platform/testing/test-database.ts';
import { ResourceWriter } from './resource-writer.ts';

describe('the changes of resources', function () {
  this.timeout(30_000);
  const at = TestAuth.define();
  let test: TestDatabase;
  let server: Server;
  let kubernetes: KubernetesApi;
  /** Resources by tenant that were read and are not written yet. */
  const held: string[] = [];
  let release: (() => void)[] | undefined = [];

  before(async () => {
    ({ test } = at);
    await test.database.system((tx) => tx.query('UPDATE tenants SET namespace_confirmed = true'));
    server = createServer((request, response) => {
      const [, , , , , namespace = '', , name] = (request.url ?? '').split(/[/?]/);
      response.writeHead(200, { 'content-type': 'application/json' });
      const metadata = { name, namespace, uid: name, resourceVersion: '1', managedFields: [] };
      const body = JSON.stringify({ apiVersion: 'kellet.dev/v1', kind: 'DeviceProfile', metadata, spec: {} });
      if (request.method === 'GET') {
        held.push(namespace);
        response.end(body);
      } else if (release) release.push(() => response.end(body));
      else response.end(body);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const config = new KubeConfig();
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    config.loadFromClusterAndUser({ name: 'test', server: url, skipTLSVerify: true }, { name: 'test' });
    kubernetes = new KubernetesApi(config, createLogger('silent'));
  });
  after(async () => {
    await kubernetes.close();
    server.close();
  });

  it('hold few of the resources of a tenant at a time, which may be large, beside those of others', async () => {
    const dispatcher = { apply: async () => ({}) } as unknown as Dispatcher;
    const writer = new ResourceWriter({
      ...{ database: test.database, kubernetes, dispatcher, logger: createLogger('silent') },
    });
    const change = (tenantId: string, name: string) => {
      const context = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId });
      return outcomeOf(writer.patch(context, { kind: 'DeviceProfile', name, displayName: 'new', spec: [] }));
    };
    const changes = Array.from({ length: 12 }, (_, n) => change('acme', `p${n}`));
    await eventually(() => held.length >= 4);
    changes.push(change('other', 'p'));
    await eventually(() => held.length >= 5);
    await sleep(200);
    const expected = ['kellet-acme', 'kellet-acme', 'kellet-acme', 'kellet-acme', 'kellet-other'];
    expect(held).to.deep.equal(expected);
    const waiting = release!;
    release = undefined;
    for (const end of waiting) end();
    expect(await Promise.all(changes)).to.deep.equal(changes.map(() => 'OK'));
    expect(held).to.have.length(13);
  });

  it('of one resource, however many wait, are refused after a while, so that none is carried out long after it was admitted', async () => {
    held.length = 0;
    const waiting: (() => void)[] = (release = []);
    const dispatcher = { apply: async () => ({}) } as unknown as Dispatcher;
    const writer = new ResourceWriter({
      ...{ database: test.database, kubernetes, dispatcher, logger: createLogger('silent'), turnMilliseconds: 200 },
    });
    const change = () =>
      outcomeOf(
        writer.patch(internalContext({ ...publicCaller, kind: 'kubernetes', tenantId: 'acme' }), {
          ...{ kind: 'DeviceProfile', name: 'p', displayName: 'new', spec: [] },
        }),
      );
    const outcomes: string[] = [];
    const changes = Array.from({ length: 12 }, async () => outcomes.push(await change()));
    await eventually(() => outcomes.length >= 8);
    await sleep(50);
    expect(outcomes).to.deep.equal(Array.from({ length: 8 }, () => 'UNAVAILABLE'));
    expect(held).to.have.length(1);
    release = undefined;
    for (const end of waiting) end();
    await Promise.all(changes);
    expect(outcomes.slice(8)).to.deep.equal(['OK', 'OK', 'OK', 'OK']);
  });

  it('are not written for a caller whose session has ended while the call waited for its turn', async () => {
    held.length = 0;
    const waiting: (() => void)[] = (release = []);
    const last: string[] = [];
    const dispatcher = {
      apply: async (_request: unknown, step?: (tx: unknown) => Promise<void>) => {
        if (step) await test.database.tenant('acme', step);
        last.push('applied');
        return {};
      },
      remove: async () => {
        last.push('removed');
        return {};
      },
    } as unknown as Dispatcher;
    const writer = new ResourceWriter({
      ...{ database: test.database, kubernetes, dispatcher, logger: createLogger('silent') },
    });
    const [defender, attacker] = [await at.signedIn(), await at.signedIn()];
    const change = ({ caller }: typeof attacker, name: string) =>
      outcomeOf(writer.patch(internalContext(caller), { kind: 'DeviceProfile', name, displayName: 'new', spec: [] }));
    const changes = ['a', 'b', 'c', 'd', 'e', 'f'].map((name) => change(attacker, name));
    await eventually(() => waiting.length === 4);
    const userId = attacker.user.user_id;
    await at.call(method.deleteUser, { userId }, defender.caller);
    release = undefined;
    for (const end of waiting) end();
    expect((await Promise.all(changes)).sort()).to.deep.equal([
      ...['OK', 'OK', 'OK', 'OK'],
      ...['UNAUTHENTICATED', 'UNAUTHENTICATED'],
    ]);
    expect(held).to.have.length(4);
    expect(await change(defender, 'g')).to.equal('OK');
    // The resource that was posted is deleted again.
    const create = ({ caller }: typeof attacker, name: string) => {
      const resource = { kind: 'DeviceProfile', displayName: name, name, spec: {} } as const;
      return outcomeOf(writer.create(internalContext(caller), resource, async () => 'read'));
    };
    last.length = 0;
    expect(await create(attacker, 'h')).to.equal('UNAUTHENTICATED');
    expect(last).to.deep.equal([]);
    expect(await create(defender, 'i')).to.equal('OK');
    const remove = ({ caller }: typeof attacker) =>
      outcomeOf(writer.remove(internalContext(caller), 'DeviceProfile', 'a'));
    expect(await remove(attacker)).to.equal('UNAUTHENTICATED');
    expect(await remove(defender)).to.equal('OK');
    expect(last).to.deep.equal(['applied', 'removed']);
  });
});
