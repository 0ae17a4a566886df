// Checks that names shared by processes through PostgreSQL or NATS are defined in one list each, and used from there.
import { expect } from 'chai';
import * as locks from '../apiserver/src/platform/database/advisory-locks.ts';
import * as channels from '../apiserver/src/platform/database/channels.ts';
import * as subjects from '../apiserver/src/platform/events/subjects.ts';
import { type Literal, literalsOf, sources } from './testing/literals.ts';

/** Each list, and patterns of code that uses a name without the list. */
const lists = [
  {
    file: 'apiserver/src/platform/database/channels.ts',
    values: Object.values(channels),
    unlisted: /pg_notify\('(?!\$\{)|^\s*(UN)?(NOTIFY|LISTEN) +(?!\$\{)/i,
  },
  {
    file: 'apiserver/src/platform/database/advisory-locks.ts',
    values: Object.values(locks).filter((lock) => typeof lock === 'number'),
    unlisted: /advisory_(xact_)?lock\w*\((['\d]|hashtext)|\bof \$\{tenantId\}$/,
  },
  {
    file: 'apiserver/src/platform/events/subjects.ts',
    values: [
      ...Object.values(subjects).filter((subject) => typeof subject === 'string'),
      ...[subjects.statusSubject('', ''), subjects.rolloutSubject('', '', ''), subjects.pointsSubject('', '')],
      ...[subjects.alarmSubject('raised', '', ''), subjects.alarmSubject('cleared', '', '')],
      ...[subjects.liveInterestSubject(''), subjects.livePointsSubject('')],
    ].map((subject) => subject.replace(/\.+$/, '.')),
    unlisted: /^(device|profile|alarm|telemetry\.points|arc|anchor|kellet\.live)\.[a-z>*]/,
  },
] as const;

/** SQL that locks the membership of profiles, with the key that the list defines. */
const exceptions: readonly string[] = [
  'pg_advisory_xact_lock_shared(hashtextextended(key, 0)) FROM unnest($1::text[]) AS k (key)',
];

const startsWith = (text: string, value: string | number): boolean =>
  String(value).endsWith('.') ? text.startsWith(String(value)) : text === String(value);

describe('one list of names', () => {
  let literals: readonly Literal[];
  before(() => (literals = literalsOf(sources('apiserver/src'))));

  for (const { file, values, unlisted } of lists) {
    it(`${file} has every name exactly once`, () => {
      expect(new Set<string | number>(values).size).to.equal(values.length);
      const elsewhere = literals.filter(
        (literal) =>
          literal.file !== file &&
          (unlisted.test(literal.text) || values.some((value) => startsWith(literal.text, value))) &&
          !exceptions.some((exception) => literal.text.includes(exception)),
      );
      expect(elsewhere).to.deep.equal([]);
    });
  }
});
