import { create } from '@bufbuild/protobuf';
import {
  Access_Caller as C,
  Access_CustomerAccess as CustomerAccess,
  AccessSchema,
} from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { type Caller, publicCaller } from '../../platform/rpc.ts';
import { allScopes } from '../../platform/scopes.ts';
import { visibilityOf } from '../../platform/visibility.ts';
import { authorize, foreignDevice, mustBeVisible, needsStepUp } from './authorize.ts';

const caller = (change: Partial<Caller>): Caller => ({ ...publicCaller, tenantId: 'acme', ...change });
const access = (callers: C[], scope = '', deviceField = '', kubernetesPermission = '') =>
  create(AccessSchema, { callers, scope, deviceField, kubernetesPermission });

describe('authorisation', () => {
  const user = caller({ kind: 'user', scopes: new Set(['devices:read']) });
  const service = caller({ kind: 'service', scopes: new Set(['telemetry:write']) });
  const device = caller({ kind: 'device', deviceId: 'd1' });
  const platform = caller({ kind: 'platform', tenantId: '' });
  const readDevices = access([C.USER, C.SERVICE], 'devices:read');
  const pause = access([C.USER], 'ota:write', '', 'create otarollouts/pause');
  const kubernetes = caller({ kind: 'kubernetes', name: 'k', scopes: new Set(['create otarollouts/pause']) });

  for (const [what, rule, who, want] of [
    ['a public method, without a credential', access([C.PUBLIC]), publicCaller, undefined],
    ['a public method, with a credential', access([C.PUBLIC]), user, undefined],
    ['a method without permitted callers', access([]), user, 'a user credential may not call this method'],
    ['the scope is held', readDevices, user, undefined],
    ['the scope is missing', readDevices, service, 'the scope devices:read is required'],
    ['the read scope for writing', access([C.USER], 'devices:write'), user, 'the scope devices:write is required'],
    ['no scope is required', access([C.USER]), user, undefined],
    ['a device where only users may call', readDevices, device, 'a device credential may not call this method'],
    ['a device where devices may call', access([C.USER, C.DEVICE], 'telemetry:write'), device, undefined],
    ['a user on a device method', access([C.DEVICE]), user, 'a user credential may not call this method'],
    ['the platform admin on tenants', access([C.PLATFORM]), platform, undefined],
    ['the platform admin elsewhere', readDevices, platform, 'a platform credential may not call this method'],
    ['a user on tenants', access([C.PLATFORM]), user, 'a user credential may not call this method'],
    [
      'an address outside the allowlist',
      readDevices,
      { ...user, ipAllowlist: ['10.0.0.0/8'] },
      'this address is not on the allowlist',
    ],
    ['a Kubernetes identity checked for this method', pause, kubernetes, undefined],
    [
      'a Kubernetes identity without the permission',
      pause,
      { ...kubernetes, scopes: new Set([]) },
      "k may not create otarollouts/pause.kellet.dev in a tenant's namespace",
    ],
    [
      'a Kubernetes identity with the scope of the same method and no permission',
      pause,
      { ...kubernetes, scopes: new Set(['ota:write']) },
      "k may not create otarollouts/pause.kellet.dev in a tenant's namespace",
    ],
    [
      'a Kubernetes identity on a method that names no permission',
      readDevices,
      { ...kubernetes, scopes: new Set(['', 'devices:read']) },
      'a Kubernetes identity may not call this method',
    ],
    [
      'a Kubernetes identity from another address',
      pause,
      { ...kubernetes, ipAllowlist: ['10.0.0.0/8'] },
      'this address is not on the allowlist',
    ],
    ['an address inside', readDevices, { ...user, ipAllowlist: ['192.0.2.0/24'] }, undefined],
  ] as const) {
    it(what, () => expect(authorize(rule, who, '192.0.2.7')).to.equal(want));
  }

  it('needs every scope, for all devices, where the contract says so', () => {
    const rule = create(AccessSchema, {
      callers: [C.USER, C.SERVICE, C.PLATFORM],
      scope: 'tenant:write',
      everyScope: true,
    });
    const refusal = 'every scope of the tenant is required, as a tenant_admin holds them';
    const limitedGrants = [{ scopes: ['ota:write'], deviceGroupIds: ['g1'] }];
    for (const kind of ['user', 'service'] as const) {
      for (const [scopes, want] of [
        [allScopes, undefined],
        [allScopes.filter((scope) => scope !== 'ota:write'), refusal],
        [['tenant:write'], refusal],
        [['tenant:read'], refusal],
      ] as const) {
        expect(authorize(rule, caller({ kind, scopes: new Set(scopes), limitedGrants }), '192.0.2.7')).to.equal(want);
      }
    }
    expect(authorize(rule, platform, '192.0.2.7')).to.equal(undefined);
  });

  it('lets a user who must enroll a second factor call only the methods for that', () => {
    const limited = { ...user, mustEnroll: true };
    const enroll = create(AccessSchema, { callers: [C.USER], beforeEnrollment: true });
    expect(authorize(enroll, limited, '192.0.2.7')).to.equal(undefined);
    for (const rule of [readDevices, access([C.USER])]) {
      expect(authorize(rule, limited, '192.0.2.7')).to.match(
        /^the tenant requires a second factor: .* or a security key$/,
      );
    }
  });

  for (const [what, stepUp, stepUpUntil, want] of [
    ['is not asked of a caller without a second factor', true, undefined, false],
    ['is not asked for other methods', false, 0, false],
    ['suffices until its time', true, 1001, false],
    ['must be made again from its time on', true, 1000, true],
    ['with one factor never suffices', true, 0, true],
  ] as const) {
    it(`a recent sign-in ${what}`, () => {
      const rule = create(AccessSchema, { callers: [C.USER], stepUp });
      const who = stepUpUntil === undefined ? user : { ...user, stepUpUntil };
      expect(needsStepUp(rule, who, 1_000_000)).to.equal(want);
    });
  }

  describe('of a user of a customer', () => {
    const limited = { ...user, customerId: 'c1' };
    for (const [name, allowed] of [
      ['UNSPECIFIED', false],
      ['NONE', false],
      ['OWN_DEVICE', true],
      ['FILTERED', true],
      ['FILTERED_ENTITIES', true],
      ['UNLIMITED', true],
    ] as const) {
      it(`${allowed ? 'allows' : 'refuses'} a method whose customer access is ${name}`, () => {
        const rule = create(AccessSchema, { ...readDevices, customerAccess: CustomerAccess[name] });
        const refusal = allowed ? undefined : 'a user of a customer may not call this method';
        expect(authorize(rule, limited, '192.0.2.7')).to.equal(refusal);
        expect(authorize(rule, user, '192.0.2.7')).to.equal(undefined);
        expect(mustBeVisible(rule, visibilityOf(limited, rule.scope))).to.equal(name === 'OWN_DEVICE');
        expect(mustBeVisible(rule, visibilityOf(user, rule.scope))).to.equal(false);
      });
    }

    it('needs the scope too', () => {
      const rule = create(AccessSchema, { ...pause, customerAccess: CustomerAccess.UNLIMITED });
      expect(authorize(rule, limited, '192.0.2.7')).to.equal('the scope ota:write is required');
    });
  });

  describe('of a user whose scope is limited to device groups', () => {
    const limitedGrants = [
      { scopes: ['devices:read', 'rpc:read'], deviceGroupIds: ['g2', 'g1'] },
      { scopes: ['devices:read'], deviceGroupIds: ['g3', 'g1'] },
    ];
    const limited = caller({ kind: 'user', scopes: new Set(['rpc:read']), limitedGrants });
    const beyond = 'the scope devices:read is limited to device groups, which does not suffice for this method';
    for (const [name, refusal] of [
      ['UNSPECIFIED', beyond],
      ['NONE', beyond],
      ['OWN_DEVICE', undefined],
      ['FILTERED', undefined],
      ['FILTERED_ENTITIES', beyond],
      ['UNLIMITED', beyond],
    ] as const) {
      it(`${refusal ? 'refuses' : 'allows'} a method whose customer access is ${name}`, () => {
        const rule = create(AccessSchema, { ...readDevices, customerAccess: CustomerAccess[name] });
        expect(authorize(rule, limited, '192.0.2.7')).to.equal(refusal);
        expect(mustBeVisible(rule, visibilityOf(limited, rule.scope))).to.equal(name === 'OWN_DEVICE');
      });
    }

    it('shows the devices of all groups that grant the scope, and all devices for a scope of the role', () => {
      expect(visibilityOf(limited, 'devices:read')).to.deep.equal({
        customerId: null,
        deviceGroupIds: ['g1', 'g2', 'g3'],
      });
      expect(visibilityOf(limited, 'rpc:read')).to.deep.equal({ customerId: null, deviceGroupIds: null });
      expect(authorize(access([C.USER], 'rpc:read'), limited, '192.0.2.7')).to.equal(undefined);
    });

    it('needs the scope', () => {
      const rule = access([C.USER], 'devices:write');
      expect(authorize(rule, limited, '192.0.2.7')).to.equal('the scope devices:write is required');
    });
  });

  it('lets a device name itself and checks any other device', () => {
    const own = access([C.DEVICE], '', 'device_id');
    expect(foreignDevice(own, device, 'd1')).to.equal(undefined);
    expect(foreignDevice(own, device, 'd2')).to.equal('d2');
    expect(foreignDevice(own, device, '')).to.equal('');
    expect(foreignDevice(own, user, 'd2')).to.equal(undefined);
    expect(foreignDevice(access([C.DEVICE]), device, 'd2')).to.equal(undefined);
  });
});
