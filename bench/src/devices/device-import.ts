// device-import: rows per second of an import over HTTP, against a COPY of the same rows into a table with the same indexes;
// then the first and a deep page of the device list, at KELLET_BENCH_DEVICES devices (1,000,000).
import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import pg from 'pg';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { WireBuffer } from '../../../apiserver/src/telemetry/write/wire-buffer.ts';
import { sendEncoded } from '../../../apiserver/src/telemetry/write/wire-query.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { describeRound, format, type Result, resultOf, type Round, type Suite } from '../harness.ts';

const devices = Number(process.env['KELLET_BENCH_DEVICES'] ?? 1_000_000);
const linesPerRound = Math.min(50_000, devices);
const rounds = 3;
const pages = 21;
const pageSize = 100;

/** The suite. */
export const deviceImport: Suite = {
  name: 'device-import',
  run: async (report) => {
    report('device-import: preparing');
    const environment = await startEnvironment(report, 1);
    const client = new pg.Client({ connectionString: environment.databaseUrl });
    await client.connect();
    try {
      const figure = { name: 'device-import', unit: 'rows/s', baseline: 'COPY, same indexes' };
      const measured: Round[] = [];
      for (let number = 1; number <= rounds; number += 1) {
        const baseline = await copyRows(client, environment.tenantId);
        const round = { baseline, ours: await importLines(environment, number) };
        measured.push(round);
        report(`device-import: round ${number}/${rounds}: ${describeRound(figure, round)}`);
      }
      report(`device-import: filling up to ${devices} devices`);
      await fill(client, environment.tenantId);
      return [resultOf(figure, measured), await measurePages(environment, report)];
    } finally {
      await client.end();
      await environment.close();
    }
  },
};

/** Returns the lines per second of an import. */
async function importLines({ rest, apiKey }: Environment, round: number): Promise<number> {
  const lines = Array.from(
    { length: linesPerRound },
    (_, index) => `Device ${index},import-${round}-${index},"{""site"":""s${index % 100}""}"`,
  );
  const started = performance.now();
  const request = httpRequest({
    ...{ host: rest.host, port: rest.port, method: 'POST', path: '/api/v1/devices/import' },
    headers: { 'X-API-Key': apiKey, 'content-type': 'text/csv' },
  });
  request.end(`name,hardware_id,tags\n${lines.join('\n')}\n`);
  const [response] = (await once(request, 'response')) as [AsyncIterable<Buffer>];
  let tail = '';
  for await (const part of response) tail = (tail + part.toString()).slice(-200);
  if (!tail.includes(`"created":${linesPerRound},`)) throw new Error(`not all lines were imported: ${tail}`);
  return linesPerRound / ((performance.now() - started) / 1000);
}

/** Returns the rows per second of a COPY. Encoding the rows is not included. */
async function copyRows(client: pg.Client, tenantId: string): Promise<number> {
  await client.query('CREATE TABLE copied (LIKE devices INCLUDING DEFAULTS INCLUDING INDEXES)');
  const wire = new WireBuffer(linesPerRound * 300);
  wire.query('COPY copied (tenant_id, device_id, name, hardware_id) FROM STDIN (FORMAT binary)');
  wire.beginCopy();
  for (let index = 0; index < linesPerRound; index += 1) {
    wire.row(4);
    wire.text(tenantId);
    wire.uuid(newId());
    wire.text(`Device ${index}`);
    wire.text(`import-${index}`);
  }
  wire.endCopy();
  const started = performance.now();
  await sendEncoded(client, wire);
  const perSecond = linesPerRound / ((performance.now() - started) / 1000);
  await client.query('DROP TABLE copied');
  return perSecond;
}

async function fill(client: pg.Client, tenantId: string): Promise<void> {
  for (let from = rounds * linesPerRound; from < devices; from += 100_000) {
    await client.query(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id, tags)
       SELECT $1, (lpad(to_hex(1789000000000 + n), 12, '0') || '70008000' || left(md5(n::text), 12))::uuid,
         'Device ' || n, 'fill-' || n, '{"site":"filled"}'
       FROM generate_series($2::int4, $3::int4) n`,
      [tenantId, from, Math.min(from + 100_000, devices) - 1],
    );
  }
  await client.query('VACUUM ANALYZE devices');
}

/** Measures the first page of the list and one in the middle of the ids. */
async function measurePages({ rest, apiKey }: Environment, report: (line: string) => void): Promise<Result> {
  const base = `http://${rest.host}:${rest.port}/api/v1/devices`;
  const get = async (query: string): Promise<{ milliseconds: number; token: string; devices: number }> => {
    const started = performance.now();
    const response = await fetch(`${base}?${query}`, { headers: { 'X-API-Key': apiKey } });
    const body = (await response.json()) as { devices: unknown[]; next_page_token: string };
    if (response.status !== 200) throw new Error(JSON.stringify(body));
    const milliseconds = performance.now() - started;
    return { milliseconds, token: body.next_page_token, devices: body.devices.length };
  };
  // Walks to a deep page once, in the largest pages that there are.
  let token = '';
  for (let seen = 0; seen < devices * 0.8;) {
    const page = await get(`page_size=500${token && `&page_token=${encodeURIComponent(token)}`}`);
    token = page.token;
    seen += page.devices;
  }
  const deep = `page_size=${pageSize}&page_token=${encodeURIComponent(token)}`;
  const figure = { name: 'device-import-deep-page', unit: 'ms', baseline: 'first page' };
  const measured: Round[] = [];
  for (let round = 0; round < pages; round += 1) {
    const { milliseconds: baseline } = await get(`page_size=${pageSize}`);
    const { milliseconds: ours } = await get(deep);
    const { milliseconds: frequent } = await get(`page_size=${pageSize}&q=Device`);
    const { milliseconds: rare } = await get(`page_size=${pageSize}&q=import-1-4999`);
    measured.push({ ours, baseline, remarks: { 'frequent text ms': frequent, 'rare text ms': rare } });
  }
  const result = resultOf(figure, measured);
  report(
    `device-import: page of ${pageSize}: first ${format(result.baseline_value)} ms, deep ${format(result.value)} ms`,
  );
  return result;
}
