import { create } from '@bufbuild/protobuf';
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from '@bufbuild/protobuf/wkt';
import { expect } from 'chai';
import { publicCaller } from '../../platform/rpc.ts';
import { publicServices } from '../services.ts';
import { RouteTable } from '../transcoding/routes.ts';
import { auditedMethods, isAudited } from './audited-calls.ts';

const table = new RouteTable(publicServices);
const nameOf = (method: { readonly name: string; readonly parent: { readonly name: string } }) =>
  `${method.parent.name}/${method.name}`;

/** Calls that change something and are not recorded by the gateway. */
const exceptions: Record<string, string> = {
  'AuthService/Login': 'auth.login, auth.login_begun and auth.login_failed',
  'AuthService/VerifyMfa': 'auth.login and auth.login_failed',
  'AuthService/BeginWebauthnLogin': 'a step of a sign-in',
  'AuthService/FinishWebauthnLogin': 'auth.login and auth.login_failed',
  'AuthService/Refresh': 'continues a session; auth.refresh_reused',
  'AuthService/BackchannelLogout': 'auth.backchannel_logout',
  'ProvisioningService/ClaimDevice': 'recorded in the transaction of the claim',
  'DeviceRegistryService/RenewDeviceCertificate': 'of a device',
  'DeviceLinkService/RespondRpc': 'of a device',
  'DeviceLinkService/ConnectGatewayDevice': 'of a device',
  'DeviceLinkService/DisconnectGatewayDevice': 'of a device',
  'OtaService/ReportOta': 'of a device',
  'TelemetryService/Ingest': 'telemetry',
};

/** What calls act on whose kind does not follow from a name like `device`. */
const kinds: Record<string, string> = {
  'AuthService/Logout': 'session',
  'AuthService/LogoutSso': 'session',
  'AuthService/RevokeAllSessions': 'user',
  'AuthService/ChangePassword': 'user',
  'AuthService/CreateApiKey': 'api_key',
  'AuthService/RemoveGroupMember': 'group',
  'AuthService/ConfirmTotp': 'user',
  'AuthService/DeleteSecurityKey': 'user',
  'AuthService/UpdateSsoProvider': 'provider',
  'AuthService/UpdateOwnTenant': 'tenant',
  'AuthService/RestoreTenant': 'tenant',
  'AuthService/SuspendTenant': 'tenant',
  'DeviceRegistryService/ImportDevices': 'device',
  'DeviceRegistryService/ChangeDevices': 'device',
  'DeviceRegistryService/RemoveDeviceFromGroup': 'device_group',
  'DeviceRegistryService/CreateEntityView': 'entity_view',
  'DeviceLinkService/SendRpc': 'device',
  'DeviceLinkService/CancelRpc': 'rpc',
  'OtaService/CreatePackage': 'package',
  'OtaService/SetAssignment': 'device',
  'WebhookService/ResendWebhookDelivery': 'webhook',
};

describe('the recorded calls', () => {
  const audited = new Map(
    [...auditedMethods(table).changing].map(([method, how]) => [nameOf(method), { method, how }]),
  );

  it('are all calls that change something, with some exceptions', () => {
    const changing = table.routes.filter(
      ({ verb, method }) => verb !== 'GET' && method.idempotency !== IdempotencyLevel.NO_SIDE_EFFECTS,
    );
    const left = changing.filter((route) => !isAudited(route)).map(({ method }) => nameOf(method));
    expect(left.sort()).to.deep.equal(Object.keys(exceptions).sort());
  });

  it('include no call that only reads', () => {
    const reading = table.routes.filter(({ verb, access }) => verb !== 'GET' && access.scope.endsWith(':read'));
    expect(reading.filter(isAudited).map(({ method }) => nameOf(method))).to.deep.equal([]);
    expect(reading.length).to.be.greaterThan(3);
  });

  it('all say what they act on', () => {
    const unnamed = [...audited].filter(([, { how }]) => how.resourceOf({}, undefined, publicCaller).kind === '');
    expect(unnamed.map(([name]) => name)).to.deep.equal([]);
  });

  for (const [name, kind] of Object.entries(kinds)) {
    it(`${name} acts on a ${kind}`, () => {
      expect(audited.get(name)!.how.resourceOf({}, undefined, publicCaller).kind).to.equal(kind);
    });
  }

  const caller = { ...publicCaller, userId: 'u1', sessionId: 's1', tenantId: 'acme' };
  for (const [name, request, response, id] of [
    ['AuthService/CreateUser', {}, { userId: 'u2' }, 'u2'],
    ['AuthService/CreateApiKey', {}, { keyId: 'k1', apiKey: 'secret' }, 'k1'],
    ['AuthService/CreateSsoProvider', { provider: 'p1' }, { provider: 'p1' }, 'p1'],
    ['AuthService/DeleteLockout', { email: 'ann@acme.test' }, {}, 'ann@acme.test'],
    ['AuthService/RemoveGroupMember', { groupId: 'g1', userId: 'u2' }, {}, 'g1'],
    ['AuthService/RevokeAllSessions', { userId: '' }, {}, 'u1'],
    ['AuthService/RevokeAllSessions', { userId: 'u2' }, {}, 'u2'],
    ['AuthService/ChangePassword', {}, {}, 'u1'],
    ['AuthService/DeleteSecurityKey', { credentialId: 'c1' }, {}, 'u1'],
    ['AuthService/Logout', {}, {}, 's1'],
    ['AuthService/LogoutSso', {}, {}, 's1'],
    ['AuthService/UpdateOwnTenant', {}, {}, 'acme'],
    ['AuthService/CreateTenant', { tenantId: 't1' }, { tenantId: 't1' }, 't1'],
    ['AuthService/CreateTenant', { tenantId: 't2' }, undefined, 't2'],
    ['AuthService/CreateSsoProvider', { provider: 'p2' }, undefined, 'p2'],
    ['DeviceRegistryService/CreateDevice', { name: 'd' }, undefined, ''],
    ['DeviceRegistryService/CreateDevice', {}, { device: { deviceId: 'd1' }, apiKey: 'secret' }, 'd1'],
    ['DeviceRegistryService/DeleteDevice', { deviceId: 'd1' }, {}, 'd1'],
    ['DeviceRegistryService/ChangeDevices', {}, { matched: 3 }, ''],
    ['DeviceLinkService/SendRpc', { deviceId: 'd1' }, { correlationId: 'c1', deviceId: 'd1' }, 'd1'],
    ['OtaService/PauseRollout', { rolloutId: 'r1' }, {}, 'r1'],
  ] as const) {
    it(`${name} names ${id === '' ? 'no id' : id}`, () => {
      const { method, how } = audited.get(name)!;
      const whole = { ...create(method.input), ...request };
      expect(how.resourceOf(whole, response, caller).id).to.equal(id);
    });
  }

  it('name ids in lower case, however they are spelt', () => {
    const id = '0198f3a2-7c41-7d3e-9b52-4f6a8c1e2d30';
    const named = (name: string, request: object): string =>
      audited.get(name)!.how.resourceOf(request, undefined, caller).id;
    expect(named('AuthService/DeleteUser', { userId: id.toUpperCase() })).to.equal(id);
    expect(named('AuthService/RevokeAllSessions', { userId: id.toUpperCase() })).to.equal(id);
    expect(named('AuthService/CreateTenant', { tenantId: 'ACME' })).to.equal('ACME');
    expect(named('AuthService/DeleteLockout', { email: ' Ann@acme.test' })).to.equal('ann@acme.test');
  });
});
