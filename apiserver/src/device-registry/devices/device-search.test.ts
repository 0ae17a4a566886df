import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { partOf, searchDevices } from './device-search.ts';

describe('the search for devices', () => {
  for (const [text, part] of [
    ['abc', 'abc'],
    ['12345678', '12345678'],
    ['123456789', '456789'],
    ['sensor-000123', '000123'],
    ['sensor-0001-3', 'sensor-0001-3'],
    ['0123456789 größe', '0123456789 größe'],
    ['0123456789%_', '0123456789%_'],
  ] as const)
    it(`looks for ${JSON.stringify(part)} to find ${JSON.stringify(text)}`, () => expect(partOf(text)).to.equal(part));

  describe('in a fleet', () => {
    let test: TestDatabase;
    before(async () => {
      test = await createTestDatabase();
      for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId, {});
      await test.database.system((tx) =>
        tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
           SELECT 'acme', gen_random_uuid(), 'device ' || n, lpad(n::text, 7, '0') || '-common-suffix' FROM generate_series(1, 1000) AS n
           UNION ALL SELECT 'acme', gen_random_uuid(), 'Rack 7 North 000123', 'a' UNION ALL SELECT 'acme', gen_random_uuid(), 'rack 8 000123', 'b'
           UNION ALL SELECT 'acme', gen_random_uuid(), 'c', 'RACK 7 NORTH 000123 c' UNION ALL SELECT 'other', $1, 'd', 'rack 7 north 000123'`,
          [newId()],
        ),
      );
    });
    after(() => test.drop());

    const namesOf = (text: string) =>
      test.database.tenant('acme', async (tx) => {
        const ids = await searchDevices(tx, 'acme', text, undefined);
        if (!ids) return undefined;
        const { rows } = await tx.query<{ name: string }>('SELECT name FROM devices WHERE device_id = ANY($1)', [ids]);
        return rows.map(({ name }) => name).sort();
      });

    for (const [what, text, names] of [
      ['the whole text among those with its end', 'rack 7 north 000123', ['Rack 7 North 000123', 'c']],
      ['a text whose end nearly all have', '0000777-common-suffix', ['device 777']],
      ['a text that none has, with an end that some have', 'rack 9 north 000123', []],
      ['a short text', 'k 8', ['rack 8 000123']],
      ['nothing that begins in the name and ends in the hardware id', 'c\nRACK 7', []],
    ] as const)
      it(`finds ${what}`, async () => expect(await namesOf(text)).to.deep.equal(names));

    it('leaves to the list what is frequent or too short', async () => {
      expect(await namesOf('-common-suffix')).to.equal(undefined);
      expect(await namesOf('de')).to.equal(undefined);
    });
  });
});
