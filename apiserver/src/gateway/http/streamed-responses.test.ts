// Streamed responses over real sockets: lines of JSON, bytes, errors before and after the first part.
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { sleep } from '../../platform/clock.ts';
import { invalidArgument, unavailable } from '../../platform/errors.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

describe('streamed responses', () => {
  let server: TestGateway;
  let exported: () => AsyncIterable<{ contentType: string; data: Buffer }>;
  let ended = 0;
  const part = (text: string) => ({ contentType: 'text/csv', data: Buffer.from(text) });

  before(async () => {
    server = await startTestGateway((registry) =>
      registry.register(DeviceRegistryService, {
        async *importDevices(requests) {
          let line = 0;
          for await (const { content, dryRun } of requests) {
            if (dryRun) throw invalidArgument('not like this');
            if (content && content.data.length > 0) yield { line: (line += 1), deviceId: '' };
          }
          yield { summary: { created: line } };
        },
        async *exportDevices() {
          try {
            yield* exported();
          } finally {
            ended += 1;
          }
        },
      }),
    );
  });
  after(() => server.stop());

  const headers = { authorization: 'Bearer admin' };
  const get = () => fetch(`${server.rest}/api/v1/devices/export`, { headers });

  it('are a line of JSON for each message', async () => {
    const response = await fetch(`${server.rest}/api/v1/devices/import`, { method: 'POST', headers, body: 'abc' });
    expect(response.headers.get('content-type')).to.equal('application/x-ndjson');
    expect(response.headers.get('x-ratelimit-limit')).not.to.equal(null);
    expect(await response.text()).to.equal(
      '{"line":1,"device_id":""}\n{"summary":{"created":1,"unchanged":0,"rejected":0}}\n',
    );
  });

  it('are an error with its status as long as nothing has been sent', async () => {
    const url = `${server.rest}/api/v1/devices/import?dry_run=true`;
    const response = await fetch(url, { method: 'POST', headers, body: 'abc' });
    const body = (await response.json()) as object;
    expect([response.status, body]).to.deep.equal([
      400,
      { ...body, code: 'INVALID_ARGUMENT', message: 'not like this' },
    ]);
    expect((await fetch(url, { method: 'POST', body: 'abc' })).status).to.equal(401);
  });

  it('are bytes of the type that the first message states', async () => {
    exported = async function* () {
      for (let index = 0; index < 1000; index += 1) yield part(`${index},`);
    };
    const response = await get();
    expect(response.headers.get('content-type')).to.equal('text/csv');
    expect(await response.text()).to.equal(Array.from({ length: 1000 }, (_, index) => `${index},`).join(''));
  });

  it('end in the middle if the call fails after the first part', async () => {
    exported = async function* () {
      yield part('first');
      await sleep(50);
      throw unavailable('the database is away');
    };
    const response = await get();
    expect(response.status).to.equal(200);
    const failure = await response.text().then(
      (text) => text,
      (error: unknown) => error,
    );
    expect(failure).to.be.instanceOf(Error);
  });

  it('end the call when the client disconnects', async () => {
    exported = async function* () {
      for (;;) {
        yield part('x'.repeat(10_000));
        await sleep(5);
      }
    };
    const before = ended;
    const stop = new AbortController();
    const first = await fetch(`${server.rest}/api/v1/devices/export`, { headers, signal: stop.signal });
    await first.body!.getReader().read();
    stop.abort();
    await eventually(() => ended === before + 1);
  });
});
