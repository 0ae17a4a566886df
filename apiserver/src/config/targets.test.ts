import { expect } from 'chai';
import { allTargets, parseAddresses, parseTargets, remoteTargets, type Target } from './targets.ts';

describe('targets', () => {
  for (const [text, wanted] of [
    ['all', allTargets],
    ['gateway', ['gateway', 'dashboard-bff']],
    ['dashboard-bff', ['dashboard-bff', 'gateway']],
    ['telemetry', ['telemetry']],
    ['auth, verifier', ['auth', 'verifier']],
    ['control', ['control', 'device-link']],
    ['telemetry,all', allTargets],
  ] as const) {
    it(`parses ${text}`, () => expect([...parseTargets(text)]).to.have.members(wanted));
  }

  for (const text of ['', 'gatway', 'auth,,verifier', 'toString', 'Gateway']) {
    it(`rejects ${JSON.stringify(text)}`, () => expect(() => parseTargets(text)).to.throw('there is no target'));
  }

  it('lists other targets only for the gateway', () => {
    expect(remoteTargets(parseTargets('all'))).to.deep.equal([]);
    expect(remoteTargets(parseTargets('telemetry'))).to.deep.equal([]);
    expect(remoteTargets(parseTargets('gateway,auth,control'))).to.deep.equal([
      'device-registry',
      'telemetry',
      'rules-engine',
      'chain-anchor',
      'verifier',
    ]);
  });
});

describe('addresses of targets', () => {
  const asked: Target[] = ['auth', 'telemetry'];
  for (const [text, wanted] of [
    ['*=services:9091', { auth: 'services:9091', telemetry: 'services:9091' }],
    ['telemetry=10.0.0.7:9, *=services:9091', { auth: 'services:9091', telemetry: '10.0.0.7:9' }],
    ['auth=[::1]:9091,telemetry=dns:///t.kellet:9091,', { auth: '[::1]:9091', telemetry: 'dns:///t.kellet:9091' }],
    ['auth=a:1,telemetry=t:1,verifier=v:1', { auth: 'a:1', telemetry: 't:1' }],
  ] as const) {
    it(`parses ${text}`, () => expect(Object.fromEntries(parseAddresses(text, asked))).to.deep.equal(wanted));
  }

  for (const [text, message] of [
    ['', 'no address is given for auth, telemetry'],
    ['auth=a:1', 'no address is given for telemetry'],
    ['auth', 'does not begin with a target'],
    ['registry=a:1,*=b:1', 'does not begin with a target'],
    ['auth=a,*=b:1', 'does not end with host:port'],
    ['auth=a:1,auth=b:1', 'auth has two addresses'],
  ] as const) {
    it(`rejects ${JSON.stringify(text)}`, () => expect(() => parseAddresses(text, asked)).to.throw(message));
  }

  it('are optional for a process that calls no other', () => expect(parseAddresses('', []).size).to.equal(0));
});
