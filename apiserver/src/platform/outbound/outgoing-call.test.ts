// Tests the spans of outgoing requests on a real OTLP receiver: their names, what they contain and what not.
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { KubeConfig } from '@kellet/kubernetes';
import { expect } from 'chai';
import { floorRate } from '../../chain-anchor/processor/fees.ts';
import { Processor } from '../../chain-anchor/processor/processor.ts';
import { startTestChain } from '../../chain-anchor/testing/test-chain.ts';
import { fetchArtifact } from '../../device-link/ota/artifacts/artifact-fetch.ts';
import { testIntake } from '../../device-link/ota/testing/test-artifacts.ts';
import { Database } from '../database/database.ts';
import { notFound } from '../errors.ts';
import { KubernetesApi } from '../kubernetes/kubernetes.ts';
import { createLogger } from '../observability/logger.ts';
import { beginTrace, endTrace, inTrace } from '../observability/tracing.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { type OtlpReceiver, type ReceivedSpan, startOtlpReceiver } from '../testing/test-otlp.ts';

const logger = createLogger('silent');
const traceId = '0af7651916cd43dd8448eb211c80319c';
const secret = 'a-secret-value';

describe('spans of outgoing requests', () => {
  let receiver: OtlpReceiver;
  let peer: Server;
  let reply: { status: number; headers?: Record<string, string>; body?: string };
  let asked: { url: string; headers: IncomingHttpHeaders };
  let base: string;
  let port: number;

  before(async () => {
    receiver = await startOtlpReceiver();
    peer = createServer((request, response) => {
      asked = { url: request.url ?? '', headers: request.headers };
      response.writeHead(reply.status, reply.headers).end(reply.body);
    }).listen(0, '127.0.0.1');
    await once(peer, 'listening');
    port = (peer.address() as AddressInfo).port;
    base = `http://127.0.0.1:${port}`;
  });
  after(async () => {
    peer.closeAllConnections();
    peer.close();
    await receiver.stop();
  });

  let calls = 0;
  /**
   * Runs work as part of a call and returns the only span it produces, after checking that it contains no secret of the
   * settings.
   */
  const spanOf = async (work: () => Promise<unknown>): Promise<ReceivedSpan> => {
    calls += 1;
    const received = { traceId, spanId: calls.toString(16).padStart(16, '0'), flags: 1, tracestate: 'congo=t61' };
    const call = beginTrace('call', 'SERVER', received, () => ({}));
    await inTrace(call, work).catch(() => undefined);
    const span = await receiver.span(({ parentSpanId }) => parentSpanId === call.context.spanId);
    endTrace(call, {});
    expect(span).to.deep.include({ traceId, kind: 3 });
    expect(receiver.spans.filter(({ parentSpanId }) => parentSpanId === call.context.spanId)).to.have.length(1);
    expect(JSON.stringify(span)).not.to.contain(secret);
    return span;
  };
  const peerAttributes = () => ({ 'server.address': '127.0.0.1', 'server.port': port });

  describe('of the Kubernetes API', () => {
    let kubernetes: KubernetesApi;
    before(() => {
      const config = new KubeConfig();
      const user = { name: 'u', token: secret };
      config.loadFromOptions({
        ...{ clusters: [{ name: 'c', server: base, skipTLSVerify: true }], users: [user] },
        ...{ contexts: [{ name: 'x', cluster: 'c', user: 'u' }], currentContext: 'x' },
      });
      kubernetes = new KubernetesApi(config, logger);
    });
    after(() => kubernetes.close());
    const get = () => kubernetes.get('OtaRollout', 'kellet-acme', 'one');

    it('are named by operation and resource kind, and the API server receives the trace', async () => {
      reply = { status: 200, body: '{}' };
      const manifest = { apiVersion: '', kind: '', metadata: { namespace: 'kellet-acme', name: 'one' }, spec: {} };
      const span = await spanOf(() => kubernetes.apply('OtaRollout', manifest));
      const path = '/apis/kellet.dev/v1alpha1/namespaces/{namespace}/otarollouts/{name}';
      expect(span.name).to.equal(`PATCH ${path}`);
      expect(span.attributes).to.deep.equal({
        ...{ 'http.request.method': 'PATCH', 'http.response.status_code': 200, ...peerAttributes() },
        ...{
          'url.template': path,
          'url.full': base + path.replace('{namespace}', 'kellet-acme').replace('{name}', 'one'),
        },
      });
      expect(asked.headers).to.include({ authorization: `Bearer ${secret}`, tracestate: 'congo=t61' });
      expect(asked.headers['traceparent']).to.equal(`00-${traceId}-${span.spanId}-01`);
    });

    it('record a failure when it refuses or is down, but not for a missing resource', async () => {
      reply = { status: 404, body: '{}' };
      const missing = await spanOf(get);
      expect(missing.attributes)
        .to.include({ 'http.response.status_code': 404 })
        .and.not.to.have.property('error.type');
      reply = { status: 500, body: secret };
      const failed = await spanOf(get);
      expect(failed.status).to.equal(2);
      expect(failed.attributes).to.include({ 'http.response.status_code': 500, 'error.type': '500' });
      const config = new KubeConfig();
      config.loadFromClusterAndUser({ name: 'c', server: 'http://127.0.0.1:1', skipTLSVerify: true }, { name: 'u' });
      const away = await spanOf(() =>
        new KubernetesApi(config, logger).review('a/v1', 'TokenReview', { token: secret }),
      );
      expect(away).to.deep.include({ name: 'POST /apis/a/v1/tokenreviews', status: 2 });
      expect(away.attributes).to.include({ 'error.type': 'ECONNREFUSED' });
    });
  });

  describe('of the processor', () => {
    const processorAt = (url: string) =>
      new Processor({ url, token: secret, callbackUrl: '', maximumRate: floorRate, onHighRate: () => undefined });

    it('are sent for the calls of a real one, also outside of requests', async () => {
      const devchain = await startTestChain();
      try {
        const refused = await spanOf(() => processorAt(devchain.url).submit(Buffer.from('00', 'hex')));
        expect(refused.name).to.equal('POST /v1/tx');
        expect(refused.attributes['http.response.status_code']).to.be.within(400, 499);
        expect(refused.status).to.equal(2);
        await processorAt(`${devchain.url}/`).feeRate();
        const policy = await receiver.span(({ name }) => name === 'GET /v1/policy');
        expect(policy.parentSpanId).to.equal('');
        expect(policy.attributes).to.include({
          ...{ 'url.full': `${devchain.url}/v1/policy`, 'http.response.status_code': 200 },
        });
      } finally {
        await devchain.stop();
      }
    });

    it('are not propagated to it', async () => {
      reply = { status: 404, body: '{}' };
      const span = await spanOf(() => processorAt(base).status('ab'.repeat(32)));
      expect(span).to.deep.include({ name: 'GET /v1/tx/{txid}' });
      expect(span.attributes).to.include({ 'url.full': `${base}/v1/tx/${'ab'.repeat(32)}` });
      expect(span.attributes).not.to.have.property('error.type');
      expect(asked.headers)
        .to.include({ authorization: `Bearer ${secret}` })
        .and.not.to.have.any.keys('traceparent');
      const gone = createServer().listen(0, '127.0.0.1');
      await once(gone, 'listening');
      const closed = `http://127.0.0.1:${(gone.address() as AddressInfo).port}`;
      gone.close();
      const away = await spanOf(() => processorAt(closed).status('ab'));
      expect(away.attributes).to.include({ 'error.type': 'ECONNREFUSED' });
    });
  });

  describe('of artifacts', () => {
    const content = Buffer.from('firmware');
    const sha256 = createHash('sha256').update(content).digest();
    const fetch = (declared: Buffer) =>
      fetchArtifact(
        `${base}/firmware.bin?X-Amz-Signature=${secret}`,
        { sha256: declared, sizeBytes: 0 },
        { ...testIntake(), tenantId: 'acme', signal: new AbortController().signal },
        async () => async () => undefined,
      );

    it('record the host and path without the query, which may be secret', async () => {
      reply = { status: 200, body: content.toString() };
      const span = await spanOf(() => fetch(sha256));
      expect(asked.url).to.contain(secret);
      expect(asked.headers).not.to.have.any.keys('traceparent');
      expect(span.name).to.equal('GET');
      expect(span.attributes).to.deep.equal({
        ...{ 'http.request.method': 'GET', 'http.response.status_code': 200, ...peerAttributes() },
        ...{ 'url.full': `${base}/firmware.bin` },
      });
    });

    it("record a failure with the server's status, or without one", async () => {
      reply = { status: 503 };
      expect((await spanOf(() => fetch(sha256))).attributes).to.include({ 'error.type': '503' });
      reply = { status: 200, headers: { 'content-length': '9' }, body: 'firmware' };
      const cut = await spanOf(() => fetch(sha256));
      expect(cut.status).to.equal(2);
    });
  });

  describe('of PostgreSQL', () => {
    let test: TestDatabase;
    before(async () => {
      test = await createTestDatabase();
    });
    after(() => test.drop());

    it('distinguish reads from transactions, and failures from refusals', async () => {
      const { database } = test;
      const read = await spanOf(() => database.read('acme', (tx) => tx.query('SELECT 1')));
      expect(read.name).to.equal('read');
      expect(read.attributes).to.include({ 'db.system.name': 'postgresql', 'db.operation.name': 'read' });
      const failed = await spanOf(() => database.tenant('acme', (tx) => tx.query(`SELECT 1 / 0 AS "${secret}"`)));
      expect(failed).to.deep.include({ name: 'transaction', status: 2 });
      expect(failed.attributes).to.include({ 'db.response.status_code': '22012', 'error.type': '22012' });
      const refused = await spanOf(() =>
        database.tenant('acme', async (tx) => {
          await tx.query('SELECT 1');
          throw notFound('device');
        }),
      );
      expect(refused.status).to.be.oneOf([0, undefined]);
      const away = new Database('postgres://127.0.0.1:1/none', logger);
      const lost = await spanOf(() => away.read('acme', (tx) => tx.query('SELECT 1')));
      expect(lost.attributes).to.include({ 'error.type': 'UNAVAILABLE', 'db.namespace': 'none', 'server.port': 1 });
      await away.close();
    });

    it('are recorded for calls only, not for loops', async () => {
      const count = receiver.spans.length;
      await test.database.system((tx) => tx.query('SELECT 1'));
      await spanOf(() => test.database.read('acme', (tx) => tx.query('SELECT 1')));
      await new Promise((resolve) => setTimeout(resolve, 150));
      const others = receiver.spans.slice(count).filter(({ name }) => name !== 'call');
      expect(others.map(({ name }) => name)).to.deep.equal(['read']);
    });
  });
});
