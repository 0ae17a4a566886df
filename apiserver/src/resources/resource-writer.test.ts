// How much of the cluster's resources a process holds at a time. With a real API server: e2e/tests/resource-writer.test.ts.
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { KubeConfig } from '@kellet/kubernetes';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import type { Dispatcher } from '../control/dispatcher.ts';
import { sleep } from '../platform/clock.ts';
import { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { internalContext, publicCaller } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { outcomeOf } from '../platform/testing/refusals.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { ResourceWriter } from './resource-writer.ts';

describe('the changes of resources', function () {
  this.timeout(30_000);
  let test: TestDatabase;
  let server: Server;
  let kubernetes: KubernetesApi;
  /** Resources by tenant that were read and are not written yet. */
  const held: string[] = [];
  let release: (() => void)[] | undefined = [];

  before(async () => {
    test = await createTestDatabase();
    for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId);
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
    await test.drop();
  });

  it('hold few of the resources of a tenant at a time, which may be large, beside those of others', async () => {
    const dispatcher = { apply: async () => ({}) } as unknown as Dispatcher;
    const writer = new ResourceWriter({
      ...{ database: test.database, kubernetes, dispatcher, logger: createLogger('silent') },
    });
    const change = (tenantId: string, name: string) => {
      const context = internalContext({ ...publicCaller, kind: 'user', tenantId });
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
        writer.patch(internalContext({ ...publicCaller, kind: 'user', tenantId: 'acme' }), {
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
});
