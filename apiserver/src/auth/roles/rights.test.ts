import { expect } from 'chai';
import { type Grant, grantBeyond, rightsBeyond, rightsOf } from './rights.ts';
import { scopesOfRole } from './roles.ts';

const grant = (scopes: string[], ...deviceGroupIds: string[]): Grant => ({ scopes, deviceGroupIds });

describe('rights', () => {
  it('are those of the role without groups', () => {
    expect(rightsOf('viewer', [])).to.deep.equal({ scopes: scopesOfRole('viewer'), limitedGrants: [] });
  });

  it('are those of the groups without a role', () => {
    expect(rightsOf(null, [])).to.deep.equal({ scopes: new Set(), limitedGrants: [] });
    expect(rightsOf(null, [grant(['ota:read']), grant(['rpc:read'], 'a')])).to.deep.equal({
      scopes: new Set(['ota:read']),
      limitedGrants: [grant(['rpc:read'], 'a')],
    });
  });

  it('a group does not narrow scopes that the role already grants', () => {
    const { scopes, limitedGrants } = rightsOf('viewer', [
      grant(['devices:read', 'devices:write'], 'a'),
      grant(['rpc:write']),
      grant(['rpc:write', 'telemetry:read'], 'b'),
    ]);
    expect([...scopes]).to.have.members([...scopesOfRole('viewer'), 'rpc:write']);
    expect(limitedGrants).to.deep.equal([grant(['devices:write'], 'a')]);
  });

  const held = rightsOf(null, [grant(['users:write']), grant(['rpc:write'], 'a', 'b'), grant(['rpc:write'], 'c')]);
  for (const [asked, beyond] of [
    [grant(['users:write']), []],
    [grant(['users:write'], 'z'), []],
    [grant(['rpc:write'], 'a'), []],
    [grant(['rpc:write'], 'b', 'c'), []],
    [grant(['rpc:write'], 'a', 'z'), ['rpc:write']],
    [grant(['rpc:write']), ['rpc:write']],
    [grant(['users:write', 'devices:read', 'rpc:write'], 'a'), ['devices:read']],
  ] as [Grant, string[]][]) {
    const devices = asked.deviceGroupIds.join() || 'all devices';
    it(`${beyond.length === 0 ? 'suffice' : 'do not suffice'} to grant ${asked.scopes.join()} for ${devices}`, () => {
      expect(grantBeyond(asked, held)).to.deep.equal(beyond);
    });
  }

  it('exceed others by each scope that is not held for all devices', () => {
    expect(rightsBeyond(held, held)).to.deep.equal([]);
    expect(rightsBeyond(rightsOf('viewer', []), rightsOf('operator', []))).to.deep.equal([]);
    expect(rightsBeyond(rightsOf(null, [grant(['rpc:write'], 'a', 'd')]), held)).to.deep.equal(['rpc:write']);
    expect(rightsBeyond(rightsOf(null, [grant(['rpc:write', 'users:write'])]), held)).to.deep.equal(['rpc:write']);
  });
});
