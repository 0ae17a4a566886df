// Import and export of devices over real sockets, against a real database.
import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { expect } from 'chai';
import { customerHasUsers } from '../../auth/accounts/account-store.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { writeProfile } from '../../device-link/provisioning/profile-store.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../../device-link/provisioning/template-store.ts';
import { startTestGateway, type TestGateway } from '../../gateway/testing/test-gateway.ts';
import type { Database } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { countBytesRead } from '../../platform/testing/bytes-read.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createDeviceRegistry, type DeviceRegistryModule } from '../service.ts';

interface Line {
  line: number;
  status: 'created' | 'unchanged' | 'rejected';
  device_id: string;
  api_key: string;
  error?: { code: string; message: string };
}

interface Report {
  status: number;
  lines: Line[];
  summary: { created: number; unchanged: number; rejected: number } | undefined;
  /** The body of an error. */
  error: { code: string; message: string };
}

describe('import and export of devices', () => {
  let test: TestDatabase;
  let devices: DeviceRegistryModule;
  let server: TestGateway;
  const pump = newId();
  const createRegistry = (database: Database): DeviceRegistryModule => {
    const platform = testPlatform(database, new MovableClock());
    const usage = { ofGroup: templatesOfGroup, customerHasUsers };
    return createDeviceRegistry(platform, createProfileReader(database), new RolloutMembership(platform.clock), usage);
  };

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'small', { quotas: { devices: 3 } });
    const profile = create(ProfileSchema, { type: 'pump' });
    const meta = create(ObjectMetaSchema, { tenantId: 'acme', namespace: 'kellet-acme', name: 'pump' });
    await test.database.tenant('acme', (tx) => writeProfile(tx, pump, meta, profile));
    devices = createRegistry(test.database);
    server = await startTestGateway((registry) => devices.register(registry), { testDatabase: test });
    await devices.start?.();
    const admin = server.tokens.get('admin')!;
    server.tokens.set('small-admin', { ...admin, tenantId: 'small' });
  });
  after(async () => {
    await server.stop();
    await devices.stop?.();
    await test.drop();
  });

  const send = (body: string | Uint8Array<ArrayBuffer>, { type = 'text/csv', query = '', token = 'admin' } = {}) =>
    fetch(`${server.rest}/api/v1/devices/import${query}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': type },
      body,
    });
  const importFile = async (...args: Parameters<typeof send>): Promise<Report> => {
    const response = await send(...args);
    const text = await response.text();
    if (response.status !== 200) {
      return { status: response.status, lines: [], summary: undefined, error: JSON.parse(text) as Report['error'] };
    }
    expect(response.headers.get('content-type')).to.equal('application/x-ndjson');
    const parts = text
      .trimEnd()
      .split('\n')
      .map((part) => JSON.parse(part) as Line & Report);
    const { summary } = parts.pop()!;
    return { status: 200, lines: parts, summary, error: { code: '', message: '' } };
  };
  const get = (path: string, token = 'admin') =>
    fetch(`${server.rest}/api/v1/${path}`, { headers: { authorization: `Bearer ${token}` } });
  const list = async (query: string): Promise<Record<string, unknown>[]> =>
    ((await (await get(`devices?${query}`)).json()) as { devices: Record<string, unknown>[] }).devices;
  const makeGroup = async (name: string): Promise<string> => {
    const response = await fetch(`${server.rest}/api/v1/device-groups`, {
      method: 'POST',
      headers: { authorization: 'Bearer admin', 'content-type': 'application/json' },
      body: JSON.stringify({ name }),
    });
    return ((await response.json()) as { group_id: string }).group_id;
  };

  it('creates what a CSV file lists, and finds it unchanged when the file is sent again', async () => {
    const groupId = await makeGroup('imported');
    const csv = [
      'name,hardware_id,profile_name,tags,metadata,group_ids',
      `Roof,csv-1,pump,"{""site"":""north""}","{""floor"":3}","[""${groupId}""]"`,
      ',csv-2,,,,',
      '',
    ].join('\r\n');
    const first = await importFile(`\ufeff${csv}`);
    expect(first.summary).to.deep.equal({ created: 2, unchanged: 0, rejected: 0 });
    expect(first.lines.map(({ line, status }) => ({ line, status }))).to.deep.equal([
      { line: 2, status: 'created' },
      { line: 3, status: 'created' },
    ]);
    expect(first.lines[0]!.api_key).to.match(/^sk_live_/);
    const [roof] = await list('hardware_id=csv-1');
    expect(roof).to.include({ device_id: first.lines[0]!.device_id, name: 'Roof', profile_id: pump });
    expect(roof).to.deep.include({ tags: { site: 'north' }, metadata: { floor: 3 }, group_ids: [groupId] });
    expect((await list('hardware_id=csv-2'))[0]).to.include({ name: 'csv-2', profile_id: '' });

    const second = await importFile(csv);
    expect(second.summary).to.deep.equal({ created: 0, unchanged: 2, rejected: 0 });
    expect(second.lines.map(({ device_id, api_key }) => ({ device_id, api_key }))).to.deep.equal(
      first.lines.map(({ device_id }) => ({ device_id, api_key: '' })),
    );
  });

  it('creates what an NDJSON file lists, and rejects lines one by one', async () => {
    const lines = [
      '{"hardware_id":"nd-1","tags":{"a":"1"},"metadata":{"deep":[1,2]}}',
      '',
      '{"hardware_id":"nd-1","tags":{"a":"2"}}',
      '{"hardware_id":"nd-1"}',
      '{"hardware_id":',
      '{"hardware_id":"nd-2","colour":"red"}',
      '[]',
      '{"name":"nameless"}',
      `{"hardware_id":"nd-3","profile_id":"${newId()}"}`,
      `{"hardware_id":"nd-4","group_ids":["${newId()}"]}`,
      '{"hardware_id":"nd-4","group_ids":["no id"]}',
      '{"hardware_id":"nd-5","profile_name":"none of ours"}',
      '{"hardware_id":"nd-6","tags":{"a":1}}',
      '{"hardware_id":"nd-7\\u0000"}',
      '{"hardware_id":"nd-8\\ud800"}',
      `{"hardware_id":"nd-9","metadata":${'{"a":'.repeat(100)}1${'}'.repeat(100)}}`,
      '{"hardware_id":"nd-10","metadata":{"a":1e999}}',
      '{"hardware_id":"nd-11","name":"last, without a line break"}',
    ];
    const { lines: results, summary } = await importFile(lines.join('\n'), { type: 'application/x-ndjson' });
    expect(results.map(({ line, status, error }) => [line, status, error?.code])).to.deep.equal([
      [1, 'created', undefined],
      [3, 'rejected', 'ALREADY_EXISTS'],
      [4, 'unchanged', undefined],
      [5, 'rejected', 'INVALID_ARGUMENT'],
      [6, 'rejected', 'INVALID_ARGUMENT'],
      [7, 'rejected', 'INVALID_ARGUMENT'],
      [8, 'rejected', 'INVALID_ARGUMENT'],
      [9, 'rejected', 'NOT_FOUND'],
      [10, 'rejected', 'NOT_FOUND'],
      [11, 'rejected', 'NOT_FOUND'],
      [12, 'rejected', 'NOT_FOUND'],
      [13, 'rejected', 'INVALID_ARGUMENT'],
      [14, 'rejected', 'INVALID_ARGUMENT'],
      [15, 'rejected', 'INVALID_ARGUMENT'],
      [16, 'rejected', 'INVALID_ARGUMENT'],
      [17, 'rejected', 'INVALID_ARGUMENT'],
      [18, 'created', undefined],
    ]);
    expect(summary).to.deep.equal({ created: 2, unchanged: 1, rejected: 14 });
    expect(results[2]!.device_id).to.equal(results[0]!.device_id);
    expect(results[1]!.error!.message).to.contain('tags');
  });

  it('changes nothing in a dry run and reports the same', async () => {
    const csv = 'hardware_id,name\ndry-1,one\ndry-1,one\ndry-1,other\ndry-2,\n';
    const dry = await importFile(csv, { query: '?dry_run=true' });
    expect(await list('q=dry-')).to.deep.equal([]);
    const real = await importFile(csv);
    const shape = ({ lines, summary }: Report) => [
      lines.map(({ line, status, error }) => [line, status, error]),
      summary,
    ];
    expect(shape(dry)).to.deep.equal(shape(real));
    expect(dry.lines.every(({ device_id, api_key }) => device_id === '' && api_key === '')).to.equal(true);
    expect(real.summary).to.deep.equal({ created: 2, unchanged: 1, rejected: 1 });
  });

  it('creates what the quota allows and rejects the rest line by line', async () => {
    const csv = `hardware_id\n${['q1', 'q2', 'q3', 'q4', 'q5'].join('\n')}\n`;
    const dry = await importFile(csv, { token: 'small-admin', query: '?dry_run=true' });
    const { lines, summary } = await importFile(csv, { token: 'small-admin' });
    for (const results of [dry.lines, lines]) {
      expect(results.map(({ status, error }) => error?.code ?? status)).to.deep.equal([
        ...['created', 'created', 'created', 'RESOURCE_EXHAUSTED', 'RESOURCE_EXHAUSTED'],
      ]);
    }
    expect(summary).to.deep.equal({ created: 3, unchanged: 0, rejected: 2 });
    const again = await importFile(csv, { token: 'small-admin' });
    expect(again.summary).to.deep.equal({ created: 0, unchanged: 3, rejected: 2 });
  });

  describe('of malformed files', () => {
    const cases: [what: string, body: string | Uint8Array<ArrayBuffer>, type: string, expected: RegExp][] = [
      ['an empty CSV file', '', 'text/csv', /empty/],
      ['an unknown column', 'hardware_id,colour\na,b\n', 'text/csv', /"colour"/],
      ['a column named twice', 'hardware_id,name,name\n', 'text/csv', /twice/],
      ['UTF-16', new Uint8Array(Buffer.from('\ufeffhardware_id\n', 'utf16le')), 'text/csv', /UTF-8/],
      ['another charset', 'hardware_id\n', 'text/csv; charset=iso-8859-1', /UTF-8/],
      ['another content type', 'hardware_id\n', 'application/json', /text\/csv/],
      ['a broken quote in the first line', '"hardware_id\n', 'text/csv', /quote/],
    ];
    for (const [what, body, type, expected] of cases) {
      it(`refuses ${what}`, async () => {
        const { status, error } = await importFile(body, { type });
        expect({ status, code: error.code }).to.deep.equal({ status: 400, code: 'INVALID_ARGUMENT' });
        expect(error.message).to.match(expected);
      });
    }

    it('rejects lines with other encodings, and cells that are too many', async () => {
      const body = Buffer.concat([
        Buffer.from('hardware_id,name\nenc-1,caf'),
        Buffer.from([0xe9]),
        Buffer.from('\nenc-2,a,b\nenc-3,ok\n'),
      ]);
      const { lines } = await importFile(new Uint8Array(body));
      expect(lines.map(({ line, status, error }) => [line, status, error?.code])).to.deep.equal([
        [2, 'rejected', 'INVALID_ARGUMENT'],
        [3, 'rejected', 'INVALID_ARGUMENT'],
        [4, 'created', undefined],
      ]);
    });

    it('accepts lines that end in different ways', async () => {
      const csv = 'hardware_id,name\r\nends-1,one\nends-2,"two\nlines"\r\nends-3,three\r\n\nends-4,four';
      const { lines, summary } = await importFile(csv);
      expect(summary).to.deep.equal({ created: 4, unchanged: 0, rejected: 0 });
      expect(lines.map(({ line }) => line)).to.deep.equal([2, 3, 5, 7]);
    });

    it('stops at a broken quote and says where', async () => {
      for (const [name, broken] of [
        ['open', '"never closed,x'],
        ['inner', 'a"b,x'],
        ['after', '"a"b,x'],
      ] as const) {
        const csv = `name,hardware_id\n"two\nlines",quote-${name}-1\n\n${broken}\nc,quote-${name}-3\n`;
        const { lines, summary } = await importFile(csv);
        expect(lines.map(({ line, status }) => [line, status])).to.deep.equal([
          [2, 'created'],
          [5, 'rejected'],
        ]);
        expect(lines[1]!.error!.message).to.match(/quote.*nothing after it was read/);
        expect(summary).to.deep.equal({ created: 1, unchanged: 0, rejected: 1 });
      }
    });

    it('remembers a bounded number of bytes of what a dry run would have created', async () => {
      const line = (id: string) => JSON.stringify({ hardware_id: id, metadata: { text: 'x'.repeat(16_000) } });
      const body = [
        line('first'),
        line('first'),
        ...Array.from({ length: 1600 }, (_, n) => line(`n-${n}`)),
        line('first'),
      ];
      const { lines } = await importFile(body.join('\n'), { type: 'application/x-ndjson', query: '?dry_run=true' });
      expect([0, 1, 2, body.length - 1].map((index) => lines[index]!.status)).to.deep.equal([
        ...['created', 'unchanged', 'created', 'created'],
      ]);
    }).timeout(30_000);

    it('compares lines with few existing devices at once if these are large', async () => {
      const metadata = JSON.stringify({ text: 'x'.repeat(16_000) });
      await test.database.system((tx) =>
        tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, metadata)
           SELECT 'acme', gen_random_uuid(), 'd', 'heavy-' || n, $1 FROM generate_series(1, 200) AS n`,
          [metadata],
        ),
      );
      const { database, greatest } = countBytesRead(test.database);
      const counted = createRegistry(database);
      const other = await startTestGateway((registry) => counted.register(registry), { testDatabase: test });
      try {
        const ids = Array.from({ length: 200 }, (_, n) => `heavy-${n + 1}`);
        const body = ['hardware_id', ...ids, 'light', 'light', ...ids].join('\n');
        const response = await fetch(`${other.rest}/api/v1/devices/import`, {
          method: 'POST',
          headers: { authorization: 'Bearer admin', 'content-type': 'text/csv' },
          body,
        });
        const text = await response.text();
        expect(text.slice(text.lastIndexOf('{"summary"'))).to.include('{"created":1,"unchanged":401,"rejected":0}');
      } finally {
        await other.stop();
      }
      expect(greatest()).to.be.below(400_000);
    });

    it('runs few imports of a tenant at once', async () => {
      const stalled = Array.from({ length: 4 }, () => {
        const sent = httpRequest(`${server.rest}/api/v1/devices/import`, {
          method: 'POST',
          headers: { authorization: 'Bearer admin', 'content-type': 'text/csv' },
        });
        sent.on('error', () => undefined).write(`hardware_id\n${'stalled\n'.repeat(100)}`);
        return sent;
      });
      try {
        await Promise.all(stalled.map((sent) => once(sent, 'response')));
        expect((await importFile('hardware_id\nother-tenant', { token: 'small-admin' })).status).to.equal(200);
        const refused = await importFile('hardware_id\nfifth');
        expect(refused).to.include({ status: 503 });
        expect(refused.error.message).to.equal('a tenant has at most 4 imports at once: try again');
      } finally {
        for (const sent of stalled) sent.destroy();
      }
      await eventually(async () => (await importFile('hardware_id\nfifth')).status === 200);
    }).timeout(20_000);

    it('does not keep a line of CSV that consists of too many short texts, nor what follows it', async () => {
      const csv = await importFile(`hardware_id\nbefore-many\n${'a,'.repeat(200_000)}\nafter-many\n`);
      expect(csv.lines.map(({ line, status }) => [line, status])).to.deep.equal([
        [2, 'created'],
        [3, 'rejected'],
      ]);
      expect(csv.lines[1]!.error!.message).to.match(/more than 1000 cells.*; nothing after it was read$/);
      const wide = await importFile(`hardware_id\n${','.repeat(100)}\nafter-wide\n`);
      expect(wide.lines.map(({ status }) => status)).to.deep.equal(['rejected', 'created']);
      expect(wide.lines[0]!.error!.message).to.equal('the line has 101 cells, the first line has 1');
    });

    it('does not keep a line that is too long', async () => {
      const long = 'x'.repeat(400_000);
      const ndjson = await importFile(`{"hardware_id":"${long}"}\n{"hardware_id":"after-long"}\n`, {
        type: 'application/x-ndjson',
      });
      expect(ndjson.lines.map(({ line, status }) => [line, status])).to.deep.equal([
        [1, 'rejected'],
        [2, 'created'],
      ]);
      const csv = await importFile(`hardware_id\nbefore-long\n"${long}"\n`);
      expect(csv.lines.map(({ line, status }) => [line, status])).to.deep.equal([
        [2, 'created'],
        [3, 'rejected'],
      ]);
    });
  });

  it('exports what import takes back unchanged, with formulas made harmless', async () => {
    const groupId = await makeGroup('exported');
    const elsewhere = ['a;=1+1', "a;'=1;''-2", 'a\n=1', '＝1', '\r=1'];
    const plain = ['a,"b"\nc', ' spaced ', 'ü😀', 'without metadata'];
    const names = ['=1+1', '+1', '-1', '@x', "'=already", "'plain", ...plain, ...elsewhere];
    const rows = names.map((name, index) => ({
      ...{ name, hardware_id: `ex-${index}`, profile_id: pump, tags: { 'k,"': '=v' }, group_ids: [groupId] },
      ...(name === 'without metadata' ? {} : { metadata: { n: [1, null, 'x'] } }),
    }));
    const made = await importFile(rows.map((row) => JSON.stringify(row)).join('\n'), { type: 'application/x-ndjson' });
    expect(made.summary).to.deep.equal({ created: names.length, unchanged: 0, rejected: 0 });

    const csvResponse = await get(`devices/export?format=csv&group_id=${groupId}`);
    expect(csvResponse.headers.get('content-type')).to.match(/^text\/csv/);
    const csv = await csvResponse.text();
    expect(csv.split('\r\n', 1)[0]).to.equal(
      'name,hardware_id,profile_id,profile_name,tags,metadata,group_ids,device_id,status,last_seen,firmware_version',
    );
    expect(csv).to.contain("'=1+1,ex-0").and.contain("''=already,").and.contain("\n'plain,");
    for (const cell of csv.split(/\r\n/).slice(1)) expect(cell).not.to.match(/^[=+\-@]/);
    // A spreadsheet of a language that separates cells by semicolons begins another one after each, whatever is quoted.
    for (const cell of csv.split(/[;\r\n]/)) expect(cell).not.to.match(/^[=+\-@＝＋－＠]/);
    expect((await importFile(csv)).summary).to.deep.equal({ created: 0, unchanged: names.length, rejected: 0 });

    const ndjsonResponse = await get(`devices/export?format=ndjson&group_id=${groupId}`);
    expect(ndjsonResponse.headers.get('content-type')).to.equal('application/x-ndjson');
    const ndjson = await ndjsonResponse.text();
    const parsed = ndjson
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(parsed.map(({ name }) => name)).to.have.members(names);
    expect(parsed[0]).to.include({ status: 'offline', last_seen: '', profile_name: 'pump' });
    expect((await importFile(ndjson, { type: 'application/x-ndjson' })).summary).to.deep.equal({
      ...{ created: 0, unchanged: names.length, rejected: 0 },
    });
  });

  it('exports nothing as a file with only its header', async () => {
    const response = await get('devices/export?hardware_id=no-such-device');
    expect([response.status, (await response.text()).split('\r\n').length]).to.deep.equal([200, 2]);
    const ndjson = await get('devices/export?format=ndjson&hardware_id=no-such-device');
    expect(await ndjson.text()).to.equal('');
    expect((await get(`devices/export?group_id=${newId()}`)).status).to.equal(404);
  });

  it('pages through more devices than it reads at once, in exports and imports', async function () {
    this.timeout(60_000);
    const total = 2500;
    const csv = `hardware_id,tags\n${Array.from({ length: total }, (_, index) => `many-${index},"{""m"":""1""}"`).join('\n')}\n`;
    expect((await importFile(csv)).summary).to.deep.equal({ created: total, unchanged: 0, rejected: 0 });
    const text = await (await get('devices/export?tag=m%3D1&format=ndjson')).text();
    const ids = text
      .trimEnd()
      .split('\n')
      .map((line) => (JSON.parse(line) as { hardware_id: string }).hardware_id);
    expect(new Set(ids).size).to.equal(total);
  });

  it('reports lines while the file is still being sent, and keeps them when the client goes away', async () => {
    const request = httpRequest(`${server.rest}/api/v1/devices/import`, {
      method: 'POST',
      headers: { authorization: 'Bearer admin', 'content-type': 'application/x-ndjson' },
    });
    request.on('error', () => undefined);
    request.write('{"hardware_id":"slow-1"}\n');
    const [response] = (await once(request, 'response')) as [NodeJS.ReadableStream];
    const [chunk] = (await once(response, 'data')) as [Buffer];
    expect(JSON.parse(chunk.toString())).to.include({ line: 1, status: 'created' });
    request.destroy();
    expect(await list('hardware_id=slow-1')).to.have.length(1);
  });

  it('reads no faster than the client reads the report, and holds little of either', async function () {
    this.timeout(60_000);
    const request = httpRequest(`${server.rest}/api/v1/devices/import?dry_run=true`, {
      method: 'POST',
      headers: { authorization: 'Bearer admin', 'content-type': 'application/x-ndjson' },
    });
    request.on('error', () => undefined);
    const line = `${JSON.stringify({ ['x'.repeat(600)]: 1 })}\n`.repeat(100);
    let written = 0;
    request.once('response', (response: NodeJS.ReadableStream) => response.pause());
    for (let stalled = false; !stalled && written < 400 * 2 ** 20; written += line.length) {
      if (!request.write(line)) {
        stalled = await Promise.race([
          once(request, 'drain').then(() => false),
          new Promise<true>((resolve) => setTimeout(resolve, 2000, true)),
        ]);
      }
    }
    request.destroy();
    expect(written).to.be.below(100 * 2 ** 20);
  });
});
