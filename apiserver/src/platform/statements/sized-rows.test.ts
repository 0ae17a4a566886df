import type { JsonObject } from '@bufbuild/protobuf';
import { expect } from 'chai';
import { freeJsonField } from '../requests/fields.ts';
import { Paging } from '../requests/paging.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { jsonBytes, pageBytes, readSized, type Room, type SizedRow, sizedRows } from './sized-rows.ts';

interface Row extends SizedRow {
  readonly id: number;
  readonly text: string;
}

describe('rows of a page', () => {
  let test: TestDatabase;
  const paging = new Paging(Buffer.alloc(32));
  const scope = ['acme', 'rows'];
  const cursorOf = (row: Row) => row.id;
  before(async () => {
    test = await createTestDatabase();
    await test.database.system((tx) => tx.query('CREATE TABLE sized (id int4 PRIMARY KEY, text text NOT NULL)'));
  });
  after(() => test?.drop());

  const store = (sizes: readonly number[]) =>
    test.database.system(async (tx) => {
      await tx.query('TRUNCATE sized');
      await tx.query(
        `INSERT INTO sized SELECT place, repeat('x', size) FROM unnest($1::int4[]) WITH ORDINALITY AS s (size, place)`,
        [sizes],
      );
    });

  /** Returns the ids of a page, the token of the next one, and how many rows and bytes each statement returned. */
  const read = (pageSize: number, pageToken = '') =>
    test.database.system(async (tx) => {
      const page = paging.open<number>({ pageSize, pageToken }, scope);
      const pieces: { limit: number; rows: number; bytes: number }[] = [];
      const { rows, isCut } = await readSized(page, cursorOf, async (after: number | undefined, room: Room) => {
        const statement = 'SELECT id, text, octet_length(text) AS row_bytes FROM sized WHERE id > $1';
        const found = await tx.query<Row & Record<string, unknown>>(sizedRows(statement, 'id', 2), [
          ...[after ?? 0, room.limit, room.bytes],
        ]);
        const bytes = found.rows.reduce((sum, { text }) => sum + text.length, 0);
        pieces.push({ limit: room.limit, rows: found.rows.length, bytes });
        return found.rows;
      });
      const closed = paging.close(rows, page, scope, cursorOf, isCut);
      return { ids: closed.rows.map(cursorOf), token: closed.nextPageToken, pieces };
    });

  const walk = async (pageSize: number) => {
    const pages: number[][] = [];
    let token: string | undefined;
    while (token !== '') {
      const page = await read(pageSize, token);
      pages.push(page.ids);
      token = page.token;
    }
    return pages;
  };
  const upTo = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

  const third = Math.ceil(pageBytes / 3);
  const table: [string, number[], number, number[]][] = [
    ['no rows', [], 10, [0]],
    ['small rows, fewer than a page', [1, 1, 1], 10, [3]],
    ['small rows, exactly a page', upTo(10), 10, [10]],
    ['small rows, one more than a page', upTo(11), 10, [10, 1]],
    ['rows larger than a page', [2 * pageBytes, 2 * pageBytes, 2 * pageBytes], 10, [1, 1, 1]],
    ['rows of a third', Array<number>(7).fill(third), 10, [3, 3, 1]],
    ['a last row that reaches the end', Array<number>(3).fill(third), 10, [3]],
    ['empty rows after a large one', [2 * pageBytes, 0, 0], 10, [1, 2]],
    ['a page full in both ways', Array<number>(6).fill(third), 3, [3, 3]],
    ['many small rows', Array<number>(1200).fill(10), 500, [500, 500, 200]],
    [
      'large rows after small ones',
      [...Array<number>(70).fill(10), ...Array<number>(3).fill(pageBytes)],
      500,
      [71, 1, 1],
    ],
  ];
  for (const [name, sizes, pageSize, expected] of table) {
    it(`end a page in time: ${name}`, async () => {
      await store(sizes);
      const pages = await walk(pageSize);
      expect(pages.map(({ length }) => length)).to.deep.equal(expected);
      expect(pages.flat()).to.deep.equal(sizes.map((_, index) => index + 1));
    });
  }

  it('are measured some at a time, and those that do not fit stay in the database', async () => {
    await store([...Array<number>(100).fill(10), ...Array<number>(30).fill(pageBytes)]);
    const { pieces } = await read(500);
    expect(pieces.map(({ limit, rows }) => [limit, rows])).to.deep.equal([
      [64, 64],
      [256, 37],
    ]);
    expect(pieces[1]!.bytes).to.equal(36 * 10 + pageBytes);
    expect((await read(50)).pieces).to.have.length(1);
  });

  it('are as large as their JSON is, not as it is stored', async () => {
    const [{ stored, size, none, list }] = await test.database.system(async (tx) => {
      await tx.query('CREATE TABLE json_rows (value jsonb)');
      await tx.query('INSERT INTO json_rows VALUES ($1)', [JSON.stringify({ text: 'x'.repeat(1_000_000) })]);
      const { rows } = await tx.query<{ stored: number; size: number; none: number | null; list: number }>(
        `SELECT pg_column_size(value) AS stored, ${jsonBytes('value')} AS size, ${jsonBytes('NULL::jsonb')} AS none,
           ${jsonBytes(`'[1,2,3]'::jsonb`)} AS list FROM json_rows`,
      );
      return rows as [(typeof rows)[0]];
    });
    expect(stored).to.be.below(100_000);
    expect(size).to.be.within(1_000_000, 1_000_100);
    expect(none).to.equal(null);
    expect(list).to.be.within(7, 60);
  });

  it('end the page if those of the next piece have been deleted', async () => {
    let calls = 0;
    const row = { row_bytes: 1, has_next: true };
    const { rows, isCut } = await readSized(
      { size: 500, after: undefined },
      () => 1,
      async (_, { limit }) => {
        calls += 1;
        return calls === 1 ? Array<typeof row>(limit).fill(row) : [];
      },
    );
    expect([rows.length, isCut]).to.deep.equal([64, false]);
  });

  it('hold no free-form JSON whose text in PostgreSQL, which writes numbers without exponents, is far beyond its limit', async () => {
    const limit = 16_384;
    const isTaken = (value: JsonObject): boolean => {
      try {
        freeJsonField('value', value, limit);
        return true;
      } catch {
        return false;
      }
    };
    for (const number of [1, -0.5, 1e20, 1e21, -1.5e-7, Number.MAX_VALUE, -Number.MIN_VALUE]) {
      let count = limit;
      while (!isTaken({ list: Array.from({ length: count }, () => number) })) count = Math.floor(count * 0.9);
      const { rows } = await test.database.system((tx) =>
        tx.query<{ bytes: number }>('SELECT octet_length($1::jsonb::text) AS bytes', [
          JSON.stringify({ list: Array.from({ length: count }, () => number) }),
        ]),
      );
      // There is a space after each comma.
      expect(rows[0]!.bytes, `${count} times ${number}`).to.be.within(limit / 4, limit * 1.6);
    }
  });
});
