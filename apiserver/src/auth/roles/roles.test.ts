import { expect } from 'chai';
import { allScopes } from '../../platform/scopes.ts';
import { deviceScopes, type Role, scopesOfRole, unknownScopes } from './roles.ts';

describe('roles', () => {
  for (const [role, scope, holds] of [
    ['viewer', 'devices:read', true],
    ['viewer', 'events:read', true],
    ['viewer', 'devices:write', false],
    ['operator', 'users:read', true],
    ['operator', 'devices:write', true],
    ['operator', 'rpc:write', true],
    ['operator', 'rules:write', true],
    ['operator', 'alarms:write', true],
    ['operator', 'entities:write', true],
    ['operator', 'profiles:write', false],
    ['operator', 'provisioning:write', false],
    ['operator', 'ota:write', false],
    ['operator', 'anchors:write', false],
    ['operator', 'keys:write', false],
    ['operator', 'users:write', false],
    ['operator', 'tenant:write', false],
    ['operator', 'telemetry:write', false],
    ['tenant_admin', 'ota:write', true],
    ['tenant_admin', 'tenant:write', true],
    ['platform_admin', 'devices:read', false],
    ['platform_admin', 'tenant:write', false],
  ] as [Role, string, boolean][]) {
    it(`${role} ${holds ? 'holds' : 'lacks'} ${scope}`, () => {
      expect(scopesOfRole(role).has(scope)).to.equal(holds);
    });
  }

  it('extend from viewer to operator to tenant administrator', () => {
    expect([...scopesOfRole('operator')]).to.include.members([...scopesOfRole('viewer')]);
    expect([...scopesOfRole('tenant_admin')]).to.include.members([...scopesOfRole('operator')]);
    expect(scopesOfRole('tenant_admin').size).to.equal(allScopes.length);
    expect(allScopes).to.have.length(30);
  });

  it('restricts a device to its own data', () => {
    for (const scope of ['devices:read', 'devices:write', 'telemetry:read', 'ota:write', 'keys:read', 'tenant:read']) {
      expect(deviceScopes.has(scope), scope).to.equal(false);
    }
  });

  it('lists unknown scopes', () => {
    expect(unknownScopes(['devices:read', 'devices:own', ''])).to.deep.equal(['devices:own', '']);
  });
});
