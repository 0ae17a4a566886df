import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { schemaCheck } from '../../../verify/testing/json-schema.ts';
import type { RolloutEvent } from '../device-link/ota/rollouts/decisions/rollout-state.ts';
import * as subjects from '../platform/events/subjects.ts';
import { type EventKind, eventKinds, exampleOf, messageSchema, nameOf } from './events.ts';

const document = JSON.parse(
  readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json')), 'utf8'),
) as Record<string, unknown>;
const page = readFileSync(path.join(import.meta.dirname, '../../../docs/events.md'), 'utf8');

const changes = ['started', 'paused', 'resumed', 'rolling_back', 'completed'] as const satisfies RolloutEvent[];
type Missing = Exclude<RolloutEvent, (typeof changes)[number]>;
const allChanges: [Missing] extends [never] ? typeof changes : never = changes;

/** What each constant and function of subjects.ts whose name ends in Subject yields; [] for messages between processes. */
const published: Readonly<Record<string, readonly string[]>> = {
  callbackSubject: [subjects.callbackSubject],
  confirmationSubject: [subjects.confirmationSubject],
  provisionedSubject: [subjects.provisionedSubject],
  statusSubject: [subjects.statusSubject('{tenant}', '{device_id}')],
  attributesSubject: [subjects.attributesSubject('{tenant}', '{device_id}')],
  rolloutSubject: allChanges.map((change) => subjects.rolloutSubject(change, '{tenant}', '{rollout_id}')),
  rolloutDevicesSubject: [subjects.rolloutDevicesSubject('{tenant}', '{rollout_id}')],
  alarmSubject: (['raised', 'cleared'] as const).map((change) =>
    subjects.alarmSubject(change, '{tenant}', '{alarm_id}'),
  ),
  auditSubject: [subjects.auditSubject('{tenant}', '{event_id}')],
  isAuditSubject: [],
  pointsSubject: [subjects.pointsSubject('{tenant}', '{device_id}')],
  ...{ liveInterestSubject: [], livePointsSubject: [], liveAskSubject: [] },
};

/** Reports whether a subject is one of the stream's. */
const isStored = (subject: string): boolean =>
  subjects.streamSubjects.some((filter) =>
    filter.endsWith('>') ? subject.startsWith(filter.slice(0, -1)) : filter === subject,
  );

const all = eventKinds.flatMap((kind) => Object.keys(kind.subjects));

describe('the kinds of events', () => {
  it('are those that the code can publish', () => {
    const named = Object.keys(subjects).filter((name) => name.endsWith('Subject'));
    expect(Object.keys(published).sort()).to.deep.equal(named.sort());
    expect(Object.values(published).flat().sort()).to.deep.equal([...all].sort());
  });

  it('are in docs/events.md, and nothing else is', () => {
    const rows = [...page.matchAll(/^\| `([a-z_.]+\.[a-z_.{}]*)` \| .+ \| (yes|—) \| .+ \|$/gm)].map((row) => row[1]!);
    expect(rows).to.deep.equal(all);
    for (const kind of eventKinds) expect(page).to.contain(JSON.stringify(exampleOf(kind), null, 2));
  });

  it('say truly which the stream keeps and which webhooks can name', () => {
    for (const kind of eventKinds) {
      for (const subject of Object.keys(kind.subjects)) expect(isStored(subject), subject).to.equal(kind.stored);
    }
    const names = eventKinds.filter(({ forTenants }) => forTenants).flatMap((kind) => Object.keys(kind.subjects));
    expect(names.map(nameOf).sort()).to.deep.equal([...subjects.eventNames].sort());
    const { webhooks } = document as { webhooks: object };
    expect(Object.keys(webhooks).sort()).to.deep.equal([...subjects.eventNames].sort());
  });

  for (const kind of eventKinds) {
    const [subject] = Object.keys(kind.subjects) as [string];
    it(`have an example of ${nameOf(subject)} that fits its schema`, () => {
      const check = schemaCheck(messageSchema(kind), document);
      expect(check(exampleOf(kind))).to.deep.equal([]);
      if (kind.resource === '') return;
      expect(check({ ...exampleOf(kind), data: { unknown: 1 } })).not.to.deep.equal([]);
      expect(check({ ...exampleOf(kind), id: 7 })).not.to.deep.equal([]);
      expect(forms(kind).some((form) => form.test(kind.example.subject))).to.equal(true);
    });
  }
});

/** Returns the subjects of a kind as regular expressions. */
const forms = (kind: EventKind): RegExp[] =>
  Object.keys(kind.subjects).map(
    (subject) => new RegExp(`^${subject.replaceAll('.', '\\.').replace(/\{[a-z_]+\}/g, '[^.]+')}$`),
  );
