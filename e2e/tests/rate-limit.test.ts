// The tenant's rate limit.
import { randomBytes } from 'node:crypto';
import { expect } from 'chai';
import { Rest, type RestResponse } from '../../dev/clients/rest.ts';
import { openResources } from '../../dev/stack/cluster/resources.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { anonymous, unique } from '../testing/fixtures.ts';

const limit = 8;

describe('rate limit', () => {
  let rest: Rest;
  before(async () => {
    const tenant = unique('limited');
    const account = { tenant, email: `admin@${tenant}.test`, password: randomBytes(18).toString('base64url') };
    await openResources(stack().info.kubeconfig).applyTenant({ ...account, rateLimitPerMinute: limit });
    rest = await Rest.login(stack().info.rest, account);
  });

  const header = ({ headers }: RestResponse, name: string) => Number(headers.get(`x-ratelimit-${name}`) ?? NaN);

  it('counts down in the headers, then rejects until the window ends', async () => {
    // The window is a minute of the database's clock: restart a sequence that crosses its end.
    const sequence = async (): Promise<RestResponse[]> => {
      const responses: RestResponse[] = [];
      for (let index = 0; index < limit + 2; index++) responses.push(await rest.send('GET', '/api/v1/profiles'));
      const windows = new Set(responses.map((response) => header(response, 'reset')));
      return windows.size === 1 && header(responses[0]!, 'remaining') === limit - 1 ? responses : [];
    };
    let responses = await sequence();
    for (let attempt = 0; attempt < 2 && responses.length === 0; attempt++) {
      await new Promise((resolve) => setTimeout(resolve, 60_000 - (Date.now() % 60_000) + 500));
      responses = await sequence();
    }

    expect(responses.map(({ status }) => status)).to.deep.equal([...Array<number>(limit).fill(200), 429, 429]);
    expect(responses.map((response) => header(response, 'remaining'))).to.deep.equal([7, 6, 5, 4, 3, 2, 1, 0, 0, 0]);
    for (const response of responses) {
      expect(header(response, 'limit')).to.equal(limit);
      expect(header(response, 'reset') % 60).to.equal(0);
    }
    const refused = responses.at(-1)!;
    expect(refused.body).to.include({ code: 429, message: 'rate limit exceeded' });
    expect(Number(refused.headers.get('retry-after'))).to.be.within(1, 60);
    expect(responses[0]!.headers.has('retry-after')).to.equal(false);

    const metrics = await new Rest(stack().info.metrics).send<string>('GET', '/metrics');
    expect(metrics.body).to.match(/^svc_gateway_rate_limited_total\{tenant="limited-[0-9a-f]+"\} [1-9]/m);
  });

  it('does not apply to routes without authentication or to health', async () => {
    for (const [method, path] of [
      ['GET', '/healthz'],
      ['GET', '/readyz'],
      ['POST', '/api/v1/callbacks/arc'],
      ['POST', '/api/v1/auth/login'],
    ] as const) {
      const { headers } = await anonymous().send(method, path, method === 'POST' ? { body: {} } : {});
      expect(headers.has('x-ratelimit-limit'), path).to.equal(false);
    }
  });
});
