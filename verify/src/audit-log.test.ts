import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { soundBundle } from '../testing/sound-bundle.ts';
import { auditEventHash, FIRST_PREVIOUS_HASH } from './audit-hash.ts';
import { type AnchoredHead, anchoredHeadOf, auditLogId, AuditLogVerifier, type AuditVerdict } from './audit-log.ts';
import { fromHex, toDisplayHex } from './bytes.ts';
import { MalformedError } from './errors.ts';
import { blockHash } from './headers.ts';
import { canonicalPayload } from './leaf-hash.ts';
import { formatAuditVerdict } from './report.ts';

type Event = Record<string, unknown> & { sequence: number; previous_hash: string; hash: string };

/** Returns a sound log. */
function log(count: number): Event[] {
  const events: Event[] = [];
  for (let sequence = 1; sequence <= count; sequence++) {
    const covered = {
      event_id: `event ${sequence}`,
      actor: { kind: 'user', id: 'u1', name: 'ännchen' },
      action: 'AuthService/CreateUser',
      sequence,
      previous_hash: events.at(-1)?.hash ?? FIRST_PREVIOUS_HASH,
    };
    events.push({ ...covered, hash: auditEventHash(covered) });
  }
  return events;
}

const verdictOf = (lines: readonly unknown[], heads: readonly AnchoredHead[] = []): AuditVerdict => {
  const verifier = new AuditLogVerifier();
  lines.forEach((line, index) => verifier.add(typeof line === 'string' ? line : JSON.stringify(line), index + 1));
  return verifier.finish(heads);
};
/** Returns an event with another value and the hash that fits it. */
const rehashed = (event: Event, change: object): Event => {
  const changed = { ...event, ...change };
  return { ...changed, hash: auditEventHash(changed) };
};

describe('an audit log', () => {
  const events = log(5);
  const [one, two, three, four, five] = events as [Event, Event, Event, Event, Event];
  const whole = { verdict: 'chained', events: 5, first: 1, last: 5 };
  const head = (sequence: number, hash = events[sequence - 1]!.hash) => ({ tenantId: 'acme', sequence, hash });

  for (const [name, lines] of [
    ['in order', events],
    ['newest first', events.toReversed()],
    ['in pages that overlap', [{ audit_events: [five, four, three] }, { audit_events: [three, two, one] }]],
    ['with empty lines', ['', ...events, ' ', '']],
  ] as const) {
    it(`holds ${name}`, () => expect(verdictOf(lines)).to.deep.equal(whole));
  }

  it('holds without its beginning', () =>
    expect(verdictOf([three, four, five])).to.deep.equal({ verdict: 'chained', events: 3, first: 3, last: 5 }));

  for (const [name, lines, reason] of [
    ['an event is missing', [one, two, four, five], 'events 3 to 3 are missing'],
    [
      'an event was changed',
      [one, { ...two, action: 'x' }, three],
      'line 2: event 2 was changed: its hash does not match',
    ],
    [
      'a nested value was changed',
      [{ ...one, actor: { ...(one['actor'] as object), name: 'eve' } }],
      'line 1: event 1 was changed: its hash does not match',
    ],
    [
      'an event was changed with its hash',
      [one, rehashed(two, { action: 'x' }), three],
      'event 3 does not continue event 2',
    ],
    [
      'an event was replaced',
      [one, two, rehashed(two, { action: 'x' })],
      'line 3: two different events have the sequence 2',
    ],
    [
      'an event was removed and the others renumbered',
      [one, rehashed(three, { sequence: 2 })],
      'event 2 does not continue event 1',
    ],
    [
      'something comes before the first',
      [rehashed(one, { previous_hash: 'ab'.repeat(32) })],
      'event 1 continues another event',
    ],
  ] as const) {
    it(`is refuted when ${name}`, () => expect(verdictOf(lines)).to.deep.include({ verdict: 'refuted', reason }));
  }

  for (const [name, lines] of [
    ['nothing', []],
    ['no JSON', ['{']],
    ['a list', [[]]],
    ['a page without events', [{ audit_events: 'x' }]],
    ['a sequence of 0', [{ ...one, sequence: 0 }]],
    ['a hash in capitals', [{ ...one, hash: one.hash.toUpperCase() }]],
    ['a name twice', [JSON.stringify(one).replace('{', '{"sequence":9,')]],
  ] as const) {
    it(`is malformed with ${name}`, () => expect(verdictOf(lines).verdict).to.equal('malformed'));
  }

  it('has no page that looks like an event, which would not be verified', () => {
    const added = { ...five, sequence: 6, audit_events: [] };
    expect(verdictOf([...events, added], [head(5)])).to.include({ verdict: 'malformed' });
    expect(verdictOf([{ audit_events: events, next_page_token: '' }], [head(5)])).to.include({ verdict: 'chained' });
  });

  it('is covered by an anchored hash', () => {
    expect(verdictOf(events, [head(3)])).to.deep.equal({ ...whole, anchored: 3, tenant_id: 'acme' });
    expect(verdictOf(events, [head(2), head(5)])).to.deep.equal({ ...whole, anchored: 5, tenant_id: 'acme' });
    expect(verdictOf([three, four], [head(2), head(3)])).to.include({ verdict: 'chained', anchored: 3 });
  });

  it('is not covered by the hash of the event before the first', () => {
    const found = verdictOf([three, four], [head(2)]);
    expect(found).to.deep.equal({ verdict: 'chained', events: 2, first: 3, last: 4, tenant_id: 'acme' });
    expect(verdictOf([three, four], [head(2, 'ab'.repeat(32))]).verdict).to.equal('refuted');
  });

  it('is of one tenant, whom the anchored hashes name', () => {
    const reason = 'anchored hashes are of the tenants acme and other';
    expect(verdictOf(events, [head(3), { ...head(5), tenantId: 'other' }])).to.include({ verdict: 'refuted', reason });
    const report = formatAuditVerdict({ ...verdictOf(events, [head(5)]), verdict: 'proven' });
    expect(report).to.match(/^proven\n[^]*\n {2}tenant {6}acme\n$/);
  });

  for (const [name, lines, anchored, reason] of [
    ['the end was cut off', [one, two, three], head(5), 'event 5 was anchored, but the events end at 3'],
    ['the log was rewritten', events, head(4, 'ab'.repeat(32)), 'event 4 is not the one that was anchored'],
    ['the beginning is missing', [four, five], head(2), 'event 2 was anchored, but the events begin at 4'],
  ] as const) {
    it(`contradicts an anchored hash when ${name}`, () =>
      expect(verdictOf(lines, [anchored])).to.deep.include({ verdict: 'refuted', reason }));
  }

  it('takes the hash from the payload of a proven point', () => {
    const payload = canonicalPayload({ 'kellet.audit.sequence': 3 }, { 'kellet.audit.hash': three.hash });
    const acme = { tenant_id: 'acme', device_id: auditLogId('acme') };
    expect(anchoredHeadOf({ ...acme, payload })).to.deep.equal(head(3));
    for (const [name, statement] of [
      ['other values', { ...acme, payload: canonicalPayload({ temperature: 3 }, {}) }],
      ['of a device', { ...acme, device_id: '0198f39d-5b7e-7aa1-8c11-d2e3f4a5b6c7', payload }],
      ['of the log of another tenant', { ...acme, device_id: auditLogId('other'), payload }],
    ] as const) {
      expect(() => anchoredHeadOf(statement), name).to.throw(MalformedError, 'not about an audit log');
    }
  });

  it('has an id that derives from its tenant', () => {
    expect(auditLogId('acme')).to.equal('49e0d89a-1f6a-5bf4-b09c-36655d240dd6');
    expect(auditLogId('zürich')).to.equal('6ff826fa-164b-5750-99d9-1ca81a2d3a82');
  });
});

describe('kellet-verify audit', function () {
  this.timeout(60_000);
  const folder = mkdtempSync(join(tmpdir(), 'kellet-audit-'));
  const events = log(3);
  /** The proof that event 2 was anchored, and a block of its chain. */
  const anchor = soundBundle({
    point: {
      ...{ tenantId: 'acme', deviceId: auditLogId('acme'), timestampSeconds: 1_760_000_000 },
      payload: canonicalPayload({ 'kellet.audit.sequence': 2 }, { 'kellet.audit.hash': events[1]!.hash }),
    },
  });
  const { height, header } = anchor.block_header_chain[0]!;
  const checkpoint = `${height}:${toDisplayHex(blockHash(fromHex(header)))}`;
  const proven = ['--anchor', 'anchor.json', '--checkpoint', checkpoint];
  const text = (lines: readonly unknown[]) => lines.map((line) => JSON.stringify(line)).join('\n');
  before(() => {
    writeFileSync(join(folder, 'events.ndjson'), `${text(events)}\n`);
    writeFileSync(join(folder, 'gap.ndjson'), text([events[0], events[2]]));
    writeFileSync(join(folder, 'bundle.json'), JSON.stringify(soundBundle()));
    writeFileSync(join(folder, 'anchor.json'), JSON.stringify(anchor));
    writeFileSync(join(folder, 'later.ndjson'), text(events.slice(2)));
  });
  after(() => rmSync(folder, { recursive: true }));

  for (const [args, code, says] of [
    [['events.ndjson'], 3, /^chained\n {2}events {6}3: 1 to 3\n$/],
    [['gap.ndjson'], 1, /^refuted: events 2 to 2 are missing/],
    [['events.ndjson', '--json'], 3, /^\{"verdict":"chained","events":3,"first":1,"last":3\}\n$/],
    [['events.ndjson', '--anchor', 'bundle.json'], 2, /bundle\.json: the proven point is not about an audit log/],
    [['events.ndjson', ...proven], 0, /^proven\n {2}events {6}3: 1 to 3\n {2}anchored {4}up to 2\n/],
    [['later.ndjson', ...proven], 3, /^chained\n {2}events {6}1: 3 to 3, and not those before 3\n {2}tenant/],
    [['missing.ndjson'], 2, /ENOENT/],
    [[], 2, /expected one file of events/],
  ] as const) {
    it(`exits ${code} for ${args.join(' ').replace(checkpoint, 'a block') || 'no file'}`, async () => {
      const cli = new URL('cli.ts', import.meta.url).pathname;
      const run = await new Promise<{ code: number; output: string }>((resolve) => {
        execFile(process.execPath, [cli, 'audit', ...args], { cwd: folder }, (error, stdout, stderr) =>
          resolve({ code: error === null ? 0 : Number(error.code), output: stdout + stderr }),
        );
      });
      expect(run.output).to.match(says);
      expect(run.code).to.equal(code);
    });
  }
});
