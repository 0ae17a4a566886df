// Tests kellet-apiserver fsck on a real installation: it is clean in use, and each kind of damage is reported, and nothing
// else.
import { spawnSync } from 'node:child_process';
import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { readConfig } from '../config/config.ts';
import { listAnchors } from '../platform/audit/audit-store.ts';
import { sleep } from '../platform/clock.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { createTestDatabase } from '../platform/testing/test-database.ts';
import { packTenant } from '../telemetry/leaves/packing.ts';
import { auditHeadPoint } from '../telemetry/points/audit-head-point.ts';
import { toHex } from '../telemetry/points/leaf-hashes.ts';
import type { Recheck } from './fsck.ts';
import { runFsckCommand } from './fsck-command.ts';
import { TestInstallation } from './testing/test-installation.ts';

interface Report {
  readonly clean: boolean;
  readonly checked: Record<string, number>;
  readonly broken: { kind: string; id: string; tenant_id: string; message: string }[];
}

const main = join(import.meta.dirname, '../main.ts');
const hurried: Recheck = { rounds: 1, milliseconds: 0 };

/** SQL that changes a bit of the first byte of a value; a second time it changes it back. */
const flip = (column: string, byte = 0): string =>
  `${column} = set_byte(${column}, ${byte}, get_byte(${column}, ${byte}) # 1)`;

describe('kellet-apiserver fsck', function () {
  this.timeout(240_000);
  let installation: TestInstallation;
  let segment: string;
  let inFolder: Buffer;

  async function run(args: string[], environment: Record<string, string> = {}, recheck = hurried) {
    const lines: string[] = [];
    const notes: string[] = [];
    const code = await runFsckCommand(args, {
      readConfig: () => readConfig({ ...installation.settings, ...environment }, []),
      logger: createLogger('silent'),
      write: (line) => lines.push(line),
      note: (line) => notes.push(line),
      recheck,
    });
    return { code, output: lines.join('\n'), notes: notes.join('\n') };
  }
  async function report(...args: string[]): Promise<Report> {
    const { code, output, notes } = await run(['--json', ...args]);
    expect(code, notes).to.be.oneOf([0, 1]);
    const parsed = JSON.parse(output) as Report;
    expect(parsed.clean).to.equal(code === 0);
    expect(parsed.clean).to.equal(parsed.broken.length === 0);
    return parsed;
  }
  const sql = (text: string, ...values: unknown[]) =>
    installation.database.system((tx) => tx.query<Record<string, unknown>>(text, values));

  before(async () => {
    installation = await TestInstallation.start();
    await installation.sendPoints(60);
    await installation.confirmAll();
    await installation.turnCold();
    await installation.sendPoints(60);
    await installation.putArtifact('postgres', 150_000);
    inFolder = await installation.putArtifact(installation.settings['KELLET_ARTIFACT_STORE']!, 3_000_000);
    await installation.addPackage(inFolder);
    await installation.addAuditEvents(5);
  });
  after(() => installation.stop());

  it('finds nothing wrong beside a running installation', async () => {
    let isDone = false;
    const load = (async () => {
      while (!isDone) {
        await installation.sendPoints(30);
        await installation.anchoring.devchain.control('mine', { count: 1 });
        // Each batch takes a coin, of which a wallet has some.
        await sleep(300);
      }
    })();
    try {
      for (let round = 0; round < 3; round += 1) {
        await installation.turnCold();
        const { code, output } = await run([], {}, { rounds: 3, milliseconds: 1000 });
        expect(code, output).to.equal(0);
      }
    } finally {
      isDone = true;
      await load;
    }
    await installation.sendPoints(60);
    await installation.stopTelemetry();
    await installation.confirmAll();
    await installation.anchoring.halt();
    while (await packTenant(installation.database, 'acme'));
    const { rows } = await sql(
      `SELECT segment_id FROM telemetry_segments WHERE state IN ('sealed', 'indexed') ORDER BY segment_id DESC LIMIT 1`,
    );
    segment = `telemetry_segment_${String(rows[0]!['segment_id'])}`;
  });

  it('reads everything, of all tenants or of one', async () => {
    const { checked, broken } = await report();
    expect(broken).to.deep.equal([]);
    for (const [name, count] of Object.entries(checked)) expect(count, name).to.be.above(0);
    expect(checked).to.include({ artifacts: 2, artifact_bytes: 3_150_000, packages: 1 });
    const anchors = await sql(
      `SELECT count(*)::int4 AS transactions FROM chain_transactions WHERE batch_id IS NOT NULL`,
    );
    expect((await report('--tenant', 'acme')).checked).to.include({
      ...{ points: checked['points'], batches: checked['batches'], leaves: checked['leaves'], artifacts: 2 },
      ...anchors.rows[0],
    });
    expect((await report('--tenant=other')).checked).to.include({
      points: 0,
      batches: 0,
      transactions: 0,
      artifacts: 0,
    });
  });

  it('reads each batch of a tenant once, though many were opened in one moment', async () => {
    const count = 250;
    await sql(
      `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id, created_at)
       SELECT CASE WHEN n % 2 = 0 THEN 'other' ELSE 'acme' END, gen_random_uuid(), 'merkle', 'open', gen_random_uuid(),
         '2026-01-01T00:00:00.123456Z'::timestamptz + n / 200 * interval '1 microsecond' FROM generate_series(1, $1 * 2) AS n`,
      count,
    );
    try {
      expect((await report('--tenant', 'other')).checked['batches']).to.equal(count);
    } finally {
      await sql(`DELETE FROM anchor_batches WHERE created_at < '2026-01-02'`);
    }
  });

  const lastBatch = `batch_id = (SELECT max(batch_id::text)::uuid FROM anchor_batches WHERE anchor_mode = 'merkle')`;
  const chainBatch = `batch_id = (SELECT max(batch_id::text)::uuid FROM anchor_batches WHERE anchor_mode = 'chain')`;
  const coin = `(txid, output_index) = (SELECT o.txid, o.output_index FROM wallet_outputs o
    JOIN chain_transactions t ON t.lease = o.leased_by WHERE t.bump IS NOT NULL ORDER BY 1, 2 LIMIT 1)`;
  const event = `tenant_id = 'acme' AND sequence = 3`;
  /** SQL that changes the audit log, whose trigger refuses that. */
  const audit = (text: string): string =>
    `DO $$ BEGIN ALTER TABLE audit_events DISABLE TRIGGER USER; ${text}; ALTER TABLE audit_events ENABLE TRIGGER USER; END $$`;
  const firstRow = 'ctid = (SELECT min(ctid) FROM TABLE)';
  /** Damage by SQL: what to run, twice or with its opposite, and the kinds of what is broken. */
  const damages: readonly (readonly [what: string, damage: string, kinds: readonly string[], repair?: string])[] = [
    [
      'a payload',
      `UPDATE SEGMENT SET payload = replace(payload, '"n":', '"m":') WHERE ${firstRow}`,
      ['point'],
      `UPDATE SEGMENT SET payload = replace(payload, '"m":', '"n":') WHERE payload LIKE '%"m":%'`,
    ],
    [
      'the hash of a point',
      `UPDATE SEGMENT SET ${flip('data_hash')} WHERE ${firstRow}`,
      ['point'],
      `UPDATE SEGMENT p SET ${flip('data_hash')} WHERE data_hash <> (SELECT substring(leaves FROM leaf_index * 32 + 1 FOR 32)
         FROM anchor_batches b WHERE b.batch_id = p.batch_id)`,
    ],
    [
      'the tenant of a point',
      `UPDATE SEGMENT SET tenant_id = 'other' WHERE ${firstRow}`,
      ['point'],
      `UPDATE SEGMENT SET tenant_id = 'acme'`,
    ],
    [
      'the place of a point',
      `UPDATE SEGMENT SET leaf_index = leaf_index + 1000 WHERE ${firstRow}`,
      ['point'],
      'UPDATE SEGMENT SET leaf_index = leaf_index - 1000 WHERE leaf_index >= 1000',
    ],
    [
      'the batch of a point',
      `UPDATE SEGMENT SET batch_id = overlay(batch_id::text PLACING 'ffffffff' FROM 1)::uuid,
         payload = payload WHERE ${firstRow}`,
      ['point'],
      `UPDATE SEGMENT p SET batch_id = b.batch_id FROM anchor_batches b
         WHERE p.batch_id::text LIKE 'ffffffff%' AND substr(b.batch_id::text, 9) = substr(p.batch_id::text, 9)`,
    ],
    [
      'a missing point',
      `WITH lost AS (DELETE FROM SEGMENT WHERE ${firstRow} RETURNING *)
         INSERT INTO kept SELECT * FROM lost`,
      ['segment'],
      'INSERT INTO SEGMENT SELECT * FROM kept',
    ],
    [
      'the tenants of a segment',
      `UPDATE telemetry_segments SET tenants_recorded = NOT tenants_recorded WHERE 'SEGMENT' = 'telemetry_segment_' || segment_id`,
      ['segment'],
    ],
    [
      'a missing table of points',
      'ALTER TABLE SEGMENT RENAME TO elsewhere',
      ['segment'],
      'ALTER TABLE elsewhere RENAME TO SEGMENT',
    ],
    ['a leaf', `UPDATE anchor_batches SET ${flip('leaves', 33)} WHERE ${lastBatch}`, ['batch', 'leaf_index', 'point']],
    ['a Merkle root', `UPDATE anchor_batches SET ${flip('merkle_root')} WHERE ${lastBatch}`, ['batch']],
    ['the number of leaves', `UPDATE anchor_batches SET count = 1000 - count WHERE ${lastBatch}`, ['batch']],
    [
      'the chains of a batch',
      `UPDATE anchor_batches SET segments = jsonb_set(segments, '{0,previous_head}',
         to_jsonb(reverse(segments #>> '{0,previous_head}'))) WHERE ${chainBatch}`,
      ['batch'],
    ],
    ['the txid of a batch', `UPDATE anchor_batches SET txid = reverse(txid) WHERE ${lastBatch}`, ['batch', 'proof']],
    ['the transaction of a batch', `UPDATE anchor_batches SET ${flip('raw_tx', 8)} WHERE ${lastBatch}`, ['batch']],
    [
      'the Merkle path of a batch',
      `UPDATE anchor_batches SET bump = substring(bump FOR octet_length(bump) - 1) WHERE ${lastBatch}`,
      ['proof'],
      `UPDATE anchor_batches b SET bump = t.bump FROM chain_transactions t WHERE t.txid = b.txid AND t.bump IS NOT NULL`,
    ],
    [
      'the block of a batch',
      `UPDATE anchor_batches SET block_hash = reverse(block_hash) WHERE ${lastBatch}`,
      ['proof'],
    ],
    [
      'a transaction',
      `UPDATE chain_transactions SET ${flip('raw_tx', 8)} WHERE txid = (SELECT min(txid) FROM chain_transactions)`,
      ['transaction'],
    ],
    [
      'the Merkle path of a transaction',
      `UPDATE chain_transactions SET block_hash = reverse(block_hash)
         WHERE txid = (SELECT min(txid) FROM chain_transactions WHERE block_hash IS NOT NULL)`,
      ['transaction'],
    ],
    ['the amount of a coin', `UPDATE wallet_outputs SET satoshis = 1000000 - satoshis WHERE ${coin}`, ['coin']],
    [
      'a coin that is free again although it is spent',
      `UPDATE wallet_outputs SET state = 'leased' WHERE ${coin}`,
      ['coin'],
      `UPDATE wallet_outputs SET state = 'spent' WHERE ${coin}`,
    ],
    [
      'an event of the audit log',
      audit(`UPDATE audit_events SET actor_name = reverse(actor_name) WHERE ${event}`),
      ['audit_event'],
    ],
    [
      'a missing event of the audit log',
      audit(
        `CREATE TABLE kept_events AS SELECT * FROM audit_events WHERE ${event}; DELETE FROM audit_events WHERE ${event}`,
      ),
      ['audit_event'],
      'INSERT INTO audit_events SELECT * FROM kept_events',
    ],
    ['the end of the audit log', `UPDATE audit_heads SET ${flip('hash')} WHERE tenant_id = 'acme'`, ['audit_event']],
    [
      'the leaf of an anchored event',
      `UPDATE audit_anchors SET ${flip('data_hash')} WHERE tenant_id = 'acme'`,
      ['audit_event'],
    ],
    [
      'the time at which an event was anchored',
      `UPDATE audit_anchors SET time = time - interval '1 day' WHERE tenant_id = 'acme'`,
      ['audit_event'],
      `UPDATE audit_anchors SET time = time + interval '1 day' WHERE tenant_id = 'acme'`,
    ],
    [
      'the proof of work of a header',
      `UPDATE block_headers SET ${flip('header', 76)}
         WHERE height = (SELECT max(height) FROM block_headers WHERE height NOT IN (SELECT block_height FROM chain_transactions
           WHERE block_height IS NOT NULL))`,
      ['header'],
    ],
    [
      'a missing header',
      `WITH lost AS (DELETE FROM block_headers WHERE height = (SELECT max(height) - 1 FROM block_headers
           WHERE height - 1 NOT IN (SELECT block_height FROM chain_transactions WHERE block_height IS NOT NULL)) RETURNING *)
         INSERT INTO kept_headers SELECT * FROM lost`,
      ['header'],
      'INSERT INTO block_headers SELECT * FROM kept_headers',
    ],
    ['the hashes of the index of leaves', `UPDATE leaf_blocks SET ${flip('data')} WHERE part = 1`, ['leaf_index']],
    ['the devices of the index of leaves', `UPDATE leaf_blocks SET ${flip('data')} WHERE part = 5`, ['leaf_index']],
    ['the postings of the index of leaves', `UPDATE leaf_blocks SET ${flip('data')} WHERE part = 3`, ['leaf_index']],
    [
      'a batch of the index of leaves',
      `UPDATE leaf_blocks SET ${flip('data', 15)}, first_id = first_id WHERE part = 4`,
      ['leaf_index'],
    ],
    [
      'the leaves that wait to be packed',
      `INSERT INTO unpacked_leaves (tenant_id, batch_id, is_proven, devices)
         SELECT tenant_id, batch_id, true, '' FROM anchor_batches WHERE ${lastBatch}`,
      ['leaf_index'],
      `DELETE FROM unpacked_leaves WHERE devices = ''`,
    ],
    [
      'latest values',
      `UPDATE telemetry_latest SET payload = CASE WHEN payload LIKE '%"n":-%' THEN replace(payload, '"n":-', '"n":')
           ELSE replace(payload, '"n":', '"n":-') END
         WHERE device_id = (SELECT min(device_id::text)::uuid FROM telemetry_latest)`,
      ['latest_values'],
    ],
    [
      'missing latest values',
      `UPDATE telemetry_latest SET tenant_id = CASE tenant_id WHEN 'acme' THEN 'other' ELSE 'acme' END
         WHERE device_id = (SELECT min(device_id::text)::uuid FROM telemetry_latest)`,
      ['latest_values'],
    ],
    [
      'a number of devices',
      `UPDATE device_counts SET devices = 1000 - devices WHERE group_id = kellet_no_id()`,
      ['device_count'],
    ],
    [
      'a number of devices in a group',
      `UPDATE device_counts SET devices = 1000 - devices WHERE group_id <> kellet_no_id()`,
      ['device_count'],
    ],
    [
      'a number of devices of a profile',
      `UPDATE profile_devices SET devices = 1000 - devices
         WHERE part = (SELECT min(part) FROM profile_devices)`,
      ['profile_count'],
    ],
    ['a sum that a limit is compared with', `UPDATE kept_sums SET amount = 1000 - amount`, ['kept_sum']],
    [
      'an artifact in the database',
      `UPDATE artifact_chunks SET ${flip('data', 9)} WHERE chunk_index = 1`,
      ['artifact'],
    ],
    [
      'a missing chunk of an artifact',
      `UPDATE artifact_chunks SET chunk_index = 102 - chunk_index WHERE chunk_index IN (2, 100)`,
      ['artifact'],
    ],
    [
      'the size of an artifact',
      `UPDATE artifacts SET size_bytes = 299_999 - size_bytes WHERE store = ''`,
      ['artifact'],
    ],
    ['the package of a missing artifact', `UPDATE ota_packages SET ${flip('sha256')}`, ['package']],
    [
      'the rows of a cold file in the catalogue',
      `UPDATE cold_files SET rows = 1000000 - rows
         WHERE file_id = (SELECT min(file_id::text)::uuid FROM cold_files WHERE state = 'live')`,
      ['cold_file'],
    ],
    [
      'the times of a cold file in the catalogue',
      `UPDATE cold_files SET least_time = -least_time, greatest_time = -greatest_time
         WHERE file_id = (SELECT min(file_id::text)::uuid FROM cold_files WHERE state = 'live')`,
      ['point'],
    ],
  ];

  for (const [what, damage, kinds, repair = damage] of damages) {
    it(`reports damage to ${what}, and nothing else`, async () => {
      const withNames = (text: string) =>
        text.replaceAll('SEGMENT', segment).replaceAll('FROM TABLE', `FROM ${segment}`);
      await sql(`CREATE TABLE IF NOT EXISTS kept (LIKE ${segment})`);
      await sql('CREATE TABLE IF NOT EXISTS kept_headers (LIKE block_headers)');
      expect((await sql(withNames(damage))).rowCount, 'the damage').not.to.equal(0);
      try {
        const { broken } = await report();
        expect([...new Set(broken.map(({ kind }) => kind))].sort(), JSON.stringify(broken.slice(0, 5))).to.deep.equal(
          kinds,
        );
      } finally {
        // What is not repaired is reported by the next test.
        await sql(withNames(repair));
      }
    });
  }

  it('reports an old anchor of the audit log whose leaf is missing, and no recent one, whose batch may be open', async () => {
    const [anchor] = await installation.database.read('acme', (tx) => listAnchors(tx, 'acme', undefined, 1));
    const move = async (hours: number): Promise<Report> => {
      const time = new Date(anchor!.time.getTime() - hours * 3_600_000);
      const { dataHash } = auditHeadPoint(anchor!, Math.floor(time.getTime() / 1000));
      const { rowCount } = await sql(
        `UPDATE audit_anchors SET time = $1, data_hash = $2 WHERE tenant_id = 'acme' AND sequence = $3`,
        ...[time, Buffer.from(toHex(dataHash), 'hex'), anchor!.sequence],
      );
      expect(rowCount).to.equal(1);
      return report();
    };
    try {
      expect((await move(-1)).broken).to.deep.equal([]);
      expect((await move(24)).broken).to.deep.equal([
        {
          ...{ kind: 'audit_event', id: `acme/${anchor!.sequence}`, tenant_id: 'acme' },
          message: 'it was anchored by a leaf that no batch has',
        },
      ]);
    } finally {
      await move(0);
    }
  });

  it('reports a missing anchor, and nothing about events that were never anchored', async () => {
    await sql('CREATE TABLE kept_anchors AS SELECT * FROM audit_anchors');
    await sql('CREATE TABLE kept_heads AS SELECT * FROM audit_heads');
    await sql('DELETE FROM audit_anchors');
    try {
      // The head knows that they were.
      expect((await report()).broken.map(({ message }) => message)).to.deep.equal([
        'it was the last to be anchored, but its anchor is missing',
      ]);
      await sql('UPDATE audit_heads SET anchored_sequence = 0, anchored_at = NULL');
      const { broken, checked } = await report();
      expect(broken).to.deep.equal([]);
      expect(checked).to.include({ audit_anchors: 0 });
      expect(checked['audit_events']).to.be.above(0);
    } finally {
      await sql('INSERT INTO audit_anchors SELECT * FROM kept_anchors');
      await sql('DELETE FROM audit_heads');
      await sql('INSERT INTO audit_heads SELECT * FROM kept_heads');
    }
  });

  const coldFile = async () => {
    const entries = await readdir(installation.coldFolder, { recursive: true });
    return join(
      installation.coldFolder,
      entries.find((name) => name.endsWith('.parquet') && !name.startsWith('_'))!,
    );
  };
  const artifactFile = async () => {
    const entries = await readdir(installation.artifactFolder, { recursive: true, withFileTypes: true });
    const file = entries.find((entry) => entry.isFile())!;
    return join(file.parentPath, file.name);
  };
  for (const [what, fileOf, kinds] of [
    ['a cold file', coldFile, ['cold_file']],
    ['an artifact in a folder', artifactFile, ['artifact']],
  ] as const) {
    for (const [damage, apply] of [
      [
        'with another byte',
        async (file: string) => {
          const bytes = await readFile(file);
          bytes.fill(0, Math.floor(bytes.length * 0.3), Math.floor(bytes.length * 0.4));
          await writeFile(file, bytes);
        },
      ],
      ['that is too short', async (file: string) => writeFile(file, (await readFile(file)).subarray(0, -100))],
      ['that is missing', (file: string) => rm(file)],
    ] as const) {
      it(`reports ${what} ${damage}, and nothing else`, async () => {
        const file = await fileOf();
        const bytes = await readFile(file);
        await apply(file);
        const { broken } = await report();
        await writeFile(file, bytes);
        expect(broken.map(({ kind, tenant_id }) => [kind, tenant_id])).to.deep.equal(
          kinds.map((kind) => [kind, 'acme']),
        );
      });
    }
  }

  it('is clean after all repairs, and prints what is broken as text', async () => {
    expect((await report()).broken).to.deep.equal([]);
    await sql(`UPDATE profile_devices SET devices = devices + 1`);
    const { code, output } = await run([]);
    await sql(`UPDATE profile_devices SET devices = devices - 1`);
    expect(code, output).to.equal(1);
    expect(output).to.match(
      /^broken: profile count [-0-9a-f]{36} of the tenant acme: \d+ devices are counted, but there are 2\n/,
    );
    expect(output).to.match(/\nchecked: .*\n1 broken$/s);
  });

  it('does not report the points of a purged tenant as missing, nor what is deleted with them', async () => {
    const other = `UPDATE ${segment} SET tenant_id = 'other' WHERE ctid = (SELECT min(ctid) FROM ${segment})`;
    await sql(`INSERT INTO kept SELECT * FROM ${segment} WHERE ctid = (SELECT min(ctid) FROM ${segment})`);
    await sql(`DELETE FROM ${segment} WHERE ctid = (SELECT min(ctid) FROM ${segment})`);
    await sql(other);
    expect((await report()).clean).to.equal(false);
    await sql(
      `UPDATE tenants SET deleted_at = now(), purge_at = now(), purge_started_at = now() WHERE tenant_id = 'other'`,
    );
    expect((await report()).broken).to.deep.equal([]);
    await sql(
      `UPDATE tenants SET deleted_at = NULL, purge_at = NULL, purge_started_at = NULL WHERE tenant_id = 'other'`,
    );
    await sql(`UPDATE ${segment} SET tenant_id = 'acme'`);
    await sql(`INSERT INTO ${segment} SELECT * FROM kept ORDER BY ctid DESC LIMIT 1`);
    expect((await report()).broken).to.deep.equal([]);
  });

  it('does not report what is in order when it is read again', async () => {
    await sql('UPDATE device_counts SET devices = devices + 1');
    const repaired = new Promise<void>((resolve, reject) => {
      setTimeout(() => void sql('UPDATE device_counts SET devices = devices - 1').then(() => resolve(), reject), 500);
    });
    // The first pass reads the numbers last, within the half second or after it.
    const { code, output } = await run([], {}, { rounds: 2, milliseconds: 1000 });
    await repaired;
    expect(code, output).to.equal(0);
  });

  it('returns 3 if it cannot tell', async () => {
    const url = new URL(installation.settings['KELLET_DATABASE_URL']!);
    url.port = '1';
    for (const [environment, why] of [
      [{ KELLET_DATABASE_URL: url.href }, 'unavailable'],
      [{ KELLET_DATABASE_URL: '' }, 'KELLET_DATABASE_URL is required'],
      [{ KELLET_COLD_URL: '' }, 'KELLET_COLD_URL is not set'],
    ] as const) {
      const { code, output, notes } = await run(['--json'], environment);
      expect([code, output], notes).to.deep.equal([3, '']);
      expect(notes).to.contain('cannot tell').and.contain(why);
    }
    await rename(installation.coldFolder, `${installation.coldFolder}-away`);
    await writeFile(installation.coldFolder, 'not a folder');
    const { code } = await run([]);
    await rm(installation.coldFolder);
    await rename(`${installation.coldFolder}-away`, installation.coldFolder);
    expect(code).to.equal(3);
  });

  it('does not migrate a database, and cannot tell about one of another version', async () => {
    const test = await createTestDatabase();
    try {
      await test.database.system((tx) => tx.query(`DELETE FROM schema_migrations WHERE name LIKE '0062%'`));
      const { code, notes } = await run([], { KELLET_DATABASE_URL: test.url });
      expect(code).to.equal(3);
      expect(notes).to.contain('lacks').and.contain('0062');
      await test.database.system((tx) => tx.query('DROP TABLE schema_migrations'));
      expect((await run([], { KELLET_DATABASE_URL: test.url })).code).to.equal(3);
      const { rows } = await test.database.system((tx) => tx.query(`SELECT to_regclass('schema_migrations') AS found`));
      expect(rows[0]).to.deep.equal({ found: null });
    } finally {
      await test.drop();
    }
  });

  for (const args of [
    ['x'],
    ['--tenant'],
    ['--tenant='],
    ['--json', 'x'],
    ['--tenant', 'nobody'],
    ['--json', '--json'],
  ]) {
    it(`returns 2 for ${args.join(' ')}`, async () => expect((await run(args)).code).to.equal(2));
  }

  it('runs as a command, with help', () => {
    const env = {
      PATH: process.env['PATH'],
      NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
      ...installation.settings,
      KELLET_COLD_URL: pathToFileURL(installation.coldFolder).href,
    };
    const { status, stdout } = spawnSync(process.execPath, [main, 'fsck', '--json'], { encoding: 'utf8', env });
    expect(JSON.parse(stdout)).to.include({ clean: true });
    expect(status).to.equal(0);
    const help = spawnSync(process.execPath, [main, 'fsck', '--help'], { encoding: 'utf8', env: {} });
    expect(help.stdout).to.contain('usage: kellet-apiserver fsck');
    expect(help.status).to.equal(0);
  });
});
