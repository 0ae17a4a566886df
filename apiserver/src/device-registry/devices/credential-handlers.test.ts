import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb.ts';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb.ts';
import { expect } from 'chai';
import { customerHasUsers } from '../../auth/accounts/account-store.ts';
import { method as authMethod, TestAuth } from '../../auth/testing/test-auth.ts';
import { testPlatform } from '../../auth/testing/test-platform.ts';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../../device-link/provisioning/template-store.ts';
import { newId } from '../../platform/ids.ts';
import { type Caller, internalContext } from '../../platform/rpc.ts';
import { outcomeOf } from '../../platform/testing/refusals.ts';
import { createDeviceRegistry } from '../service.ts';

const { method } = DeviceRegistryService;

describe('credentials of devices, and the authorities that sign them', () => {
  const at = TestAuth.define();

  it('are not given to a caller whose session, right or key has ended while the call waited', async () => {
    const { database } = at.test;
    const usage = { ofGroup: templatesOfGroup, customerHasUsers };
    const membership = new RolloutMembership(at.clock);
    const platform = testPlatform(database, at.clock);
    createDeviceRegistry(platform, createProfileReader(database), membership, usage).register(at.registry);
    const call = <M extends (typeof method)[keyof typeof method]>(
      of: M,
      request: MessageInitShape<M['input']>,
      caller: Caller,
    ) => at.registry.unary(of, create(of.input, request) as MessageShape<M['input']>, internalContext(caller));
    const { caller: defender } = await at.signedIn();
    const { device, apiKey } = await call(method.createDevice, { hardwareId: 'pump' }, defender);
    const { deviceId } = device!;
    const outcomes = (caller: Caller) =>
      Promise.all([
        outcomeOf(call(method.rotateDeviceCredentials, { deviceId }, caller)),
        outcomeOf(call(method.createDeviceAuthority, {}, caller)),
        outcomeOf(call(method.createDevice, { hardwareId: newId() }, caller)),
      ]);

    // As they were when the calls were admitted.
    const [deleted, demoted] = [await at.signedIn(), await at.signedIn()];
    const key = await at.call(
      authMethod.createApiKey,
      { name: 'k', scopes: ['keys:write', 'devices:write'] },
      defender,
    );
    const service = await at.auth.authenticate(key.apiKey!, '127.0.0.1');
    await at.call(authMethod.deleteUser, { userId: deleted.user.user_id }, defender);
    const demotion = { userId: demoted.user.user_id, role: User_Role.operator, updateMask: { paths: ['role'] } };
    await at.call(authMethod.updateUser, demotion, defender);
    await at.call(authMethod.deleteApiKey, { keyId: key.keyId }, defender);

    expect(await outcomes(deleted.caller)).to.deep.equal(['UNAUTHENTICATED', 'UNAUTHENTICATED', 'UNAUTHENTICATED']);
    expect(await outcomes(demoted.caller)).to.deep.equal([
      'PERMISSION_DENIED',
      'PERMISSION_DENIED',
      'PERMISSION_DENIED',
    ]);
    expect(await outcomes(service)).to.deep.equal(['UNAUTHENTICATED', 'UNAUTHENTICATED', 'UNAUTHENTICATED']);
    expect((await at.auth.authenticate(apiKey, '127.0.0.1')).deviceId).to.equal(deviceId);
    expect((await call(method.listDeviceAuthorities, {}, defender)).deviceAuthorities).to.have.length(0);
    expect(await outcomes(defender)).to.deep.equal(['OK', 'OK', 'OK']);
  });
});
