import { expect } from 'chai';
import { pathWith, returnPath, routeOf } from './routes.ts';

describe('routes of the dashboard', () => {
  for (const [location, page, id] of [
    ['/', 'overview', ''],
    ['/?x=1', 'overview', ''],
    ['/devices', 'devices', ''],
    ['/devices/', 'devices', ''],
    ['/devices?q=a/b', 'devices', ''],
    ['/devices/0198', 'device', '0198'],
    ['/devices/a%2Fb?tab=events', 'device', 'a/b'],
    ['/rollouts/r-1', 'rollout', 'r-1'],
    ['/sign-in', 'sign-in', ''],
    ['/account', 'account', ''],
    ['/account/x', 'unknown', ''],
    ['/devices/a/b', 'unknown', ''],
    ['/devices/%zz', 'unknown', ''],
    ['/Devices', 'unknown', ''],
    ['/nothing', 'unknown', ''],
    ['//evil.test', 'unknown', ''],
  ] as const) {
    it(`lead from ${location} to ${page}`, () => {
      const route = routeOf(location);
      expect([route.page, route.id]).to.deep.equal([page, id]);
    });
  }

  it('keep the query', () => {
    expect(routeOf('/devices?q=a%20b&tag=x%3Dy?z').query.get('tag')).to.equal('x=y?z');
  });

  it('are written with the parameters that are set', () => {
    expect(pathWith('/devices', { q: '', status: '' })).to.equal('/devices');
    expect(pathWith('/devices', { q: 'a b', status: '' })).to.equal('/devices?q=a+b');
  });

  for (const [wanted, path] of [
    [null, '/'],
    ['/devices?status=offline', '/devices?status=offline'],
    ['/sign-in?next=/devices', '/'],
    ['https://evil.test/', '/'],
    ['//evil.test/devices', '/'],
    ['/\\evil.test', '/'],
    ['javascript:alert(1)', '/'],
    ['/nothing', '/'],
  ] as const) {
    it(`go to ${path} after a sign-in for ${wanted}`, () => expect(returnPath(wanted)).to.equal(path));
  }
});
