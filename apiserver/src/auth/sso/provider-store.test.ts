import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { insertTenant } from '../testing/test-fixtures.ts';
import { findProviderClient, findProvidersFor, insertProvider } from './provider-store.ts';

describe('providers', () => {
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
  });
  after(() => test?.drop());

  it('are read for strangers without their roles, which may be large', async () => {
    const client = {
      ...{ tenant_id: 'acme', provider: 'keycloak', issuer: 'https://sso.acme.test' },
      ...{ client_id: 'kellet', client_secret: 'sealed' },
    };
    const roles = Object.fromEntries(Array.from({ length: 256 }, (_, i) => [`${i}`.padEnd(256, 'x'), 'viewer']));
    await test.database.tenant('acme', (tx) =>
      insertProvider(tx, { ...client, allowed_domains: ['acme.test'], role_mapping: roles }),
    );
    const read = test.database.systemRead.bind(test.database);
    expect(await read((tx) => findProvidersFor(tx, 'acme.test', ''))).to.deep.equal([client]);
    expect(await read((tx) => findProvidersFor(tx, 'keycloak', 'acme'))).to.deep.equal([client]);
    expect(await read((tx) => findProviderClient(tx, 'acme', 'keycloak'))).to.deep.equal(client);
    expect(await read((tx) => findProviderClient(tx, 'acme', 'another'))).to.equal(undefined);
  });
});
