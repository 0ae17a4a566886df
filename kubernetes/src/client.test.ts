// Failures that a real API server does not show on demand.
import { expect } from 'chai';
import { KubernetesClient, type KubernetesClientOptions } from './client.ts';
import { type Failure, KubernetesError } from './errors.ts';
import { type KubernetesObject, secrets } from './resource.ts';
import { ReplayServer, type Reply } from './testing/replay-server.ts';

const status = (code: number, reason: string, details: object = {}): Reply => ({
  status: code,
  body: JSON.stringify({ kind: 'Status', message: `${reason} it is`, reason, code, details }),
});

/** Returns the result of work with a client of a server that sends these responses, and the received requests. */
async function withServer<T>(
  replies: Reply[],
  work: (client: KubernetesClient) => Promise<T>,
  { tokenFile, ...options }: Partial<KubernetesClientOptions> & { tokenFile?: string } = {},
) {
  const server = new ReplayServer(replies);
  const client = new KubernetesClient({ config: await server.start(tokenFile), userAgent: 'test', ...options });
  try {
    return { result: await work(client), requests: server.requests };
  } finally {
    await client.close();
    await server.stop();
  }
}

const get = (client: KubernetesClient): Promise<KubernetesObject> => client.get(secrets, 'ns', 'a');
const errorOf = (request: Promise<unknown>): Promise<KubernetesError> =>
  request.then(
    () => expect.fail('it succeeded'),
    (error: KubernetesError) => error,
  );

describe('KubernetesClient', () => {
  const cases: readonly [what: string, reply: Reply, failure: Failure, message: RegExp][] = [
    ['400', status(400, 'BadRequest'), 'invalid', /^BadRequest it is$/],
    ['401', status(401, 'Unauthorized'), 'unauthenticated', /^Unauthorized/],
    ['403', status(403, 'Forbidden'), 'forbidden', /^Forbidden/],
    ['404', status(404, 'NotFound'), 'notFound', /^NotFound/],
    ['409 for a taken name', status(409, 'AlreadyExists'), 'alreadyExists', /^AlreadyExists/],
    ['409 for a changed object', status(409, 'Conflict'), 'conflict', /^Conflict/],
    ['410', status(410, 'Expired'), 'expired', /^Expired/],
    ['422', status(422, 'Invalid'), 'invalid', /^Invalid/],
    ['429', status(429, 'TooManyRequests'), 'throttled', /^TooMany/],
    ['500', status(500, 'InternalError'), 'serverError', /^InternalError/],
    [
      'an error page of a proxy',
      { status: 502, body: '<h1>Bad gateway</h1>\n' },
      'serverError',
      /^<h1>Bad gateway<\/h1>$/,
    ],
    ['an empty error', { status: 503, body: '' }, 'serverError', /^the Kubernetes API returned 503$/],
    ['an error that is not an object', { status: 418, body: 'null' }, 'other', /^null$/],
    ['a response that is not JSON', { body: '<html>' }, 'unknownOutcome', /JSON/],
    ['a response that is reset', { body: '{"metadata":', end: 'reset' }, 'unknownOutcome', /./],
    ['a response that never ends', { body: '{"metadata":', end: 'hang' }, 'unknownOutcome', /timeout/],
  ];
  for (const [what, reply, failure, message] of cases) {
    it(`classifies ${what} as ${failure}`, async () => {
      const { result } = await withServer([reply], (client) => errorOf(get(client)), { timeoutMilliseconds: 300 });
      expect(result).to.be.instanceOf(KubernetesError);
      expect(result.failure).to.equal(failure);
      expect(result.message).to.match(message);
      expect(result.status).to.equal((reply.status ?? 200) < 300 ? 0 : reply.status);
    });
  }

  it('classifies a server that does not listen as unreachable', async () => {
    const server = new ReplayServer([]);
    const config = await server.start();
    await server.stop();
    const error = await errorOf(get(new KubernetesClient({ config, userAgent: 'test' })));
    expect(error.failure).to.equal('unreachable');
  });

  it('sends nothing without a credential', async () => {
    const tokenFile = '/nowhere/token';
    const { result, requests } = await withServer([{ body: '{}' }], (client) => errorOf(get(client)), { tokenFile });
    expect(result.failure).to.equal('noCredential');
    expect(requests).to.deep.equal([]);
  });

  it('reports invalid fields and when to retry', async () => {
    const causes = [{ field: 'spec.a', message: 'too long', reason: 'FieldValueInvalid' }];
    const invalid = status(422, 'Invalid', { causes });
    const busy = { ...status(429, 'TooManyRequests'), headers: { 'retry-after': '7' } };
    const { result } = await withServer([invalid, busy], async (client) => [
      (await errorOf(get(client))).causes,
      (await errorOf(get(client))).retryAfterSeconds,
    ]);
    expect(result).to.deep.equal([causes, 7]);
  });

  it('returns undefined from find if the object does not exist, and throws otherwise', async () => {
    const { result } = await withServer([status(404, 'NotFound'), status(403, 'Forbidden')], async (client) => [
      await client.find(secrets, 'ns', 'a'),
      (await errorOf(client.find(secrets, 'ns', 'a'))).failure,
    ]);
    expect(result).to.deep.equal([undefined, 'forbidden']);
  });

  it('ends a watch without data after the idle time', async () => {
    const event = { type: 'ADDED', object: { metadata: { name: 'a', resourceVersion: '1' } } };
    const silent: Reply = { body: `${JSON.stringify(event)}\n`, end: 'hang' };
    const seen: string[] = [];
    const watch = async (client: KubernetesClient) => {
      const events = client.watch(secrets, 'ns', { resourceVersion: '0' }, new AbortController().signal, 300);
      for await (const { object } of events) seen.push(object.metadata.name);
    };
    const { result, requests } = await withServer([silent], (client) => errorOf(watch(client)));
    expect(result.failure).to.equal('unknownOutcome');
    expect(seen).to.deep.equal(['a']);
    expect(Object.fromEntries(requests[0]!.query)).to.include({ watch: 'true', allowWatchBookmarks: 'true' });
  });

  it('throws from a watch when the signal aborts', async () => {
    const watch = async (client: KubernetesClient) => {
      for await (const _ of client.watch(secrets, '', {}, AbortSignal.timeout(100)));
    };
    const { result } = await withServer([{ body: '', end: 'hang' }], (client) => errorOf(watch(client)));
    expect(result.failure).to.equal('unknownOutcome');
  });

  it('passes each request through the wrapper, with its template and added headers', async () => {
    const sent: unknown[] = [];
    const around: KubernetesClientOptions['around'] = async ({ method, template }, exchange) => {
      const response = await exchange();
      sent.push([method, template, response.statusCode]);
      return response;
    };
    await withServer([{ body: '{}' }], get, { around });
    expect(sent).to.deep.equal([['GET', '/api/v1/namespaces/{namespace}/secrets/{name}', 200]]);
  });
});
