import { expect } from 'chai';
import { type AskingGateway, decideConnect, maxChildren, type WantedDevice } from './connect-decision.ts';

describe('the connection of a child', () => {
  const gateway: AskingGateway = { deviceId: 'gateway', customerId: 'a', isChild: false, children: 3, created: 3 };
  const device: WantedDevice = {
    deviceId: 'child',
    customerId: null,
    gatewayDeviceId: null,
    isGatewayAlive: false,
    hasChildren: false,
    usesOwnKey: false,
  };
  const full = { children: maxChildren };
  const cases: [title: string, Partial<AskingGateway>, Partial<WantedDevice> | undefined, expected: string][] = [
    ['of an unknown device', {}, undefined, 'create'],
    ['of one that was registered', {}, {}, 'adopt'],
    ['of its own', {}, { gatewayDeviceId: 'gateway' }, 'keep'],
    ['of its own, with a key', {}, { gatewayDeviceId: 'gateway', usesOwnKey: true }, 'keep'],
    ['of its own when it is full', full, { gatewayDeviceId: 'gateway' }, 'keep'],
    ['of an unknown device when it is full', full, undefined, 'a gateway has at most 1000 children'],
    ['of an unknown device when it has created too many', { created: maxChildren }, undefined, 'creates at most 1000'],
    ['of a registered device when it has created too many', { created: maxChildren }, {}, 'adopt'],
    ['of another when it is full', full, {}, 'a gateway has at most 1000 children'],
    ['behind a gateway that is alive', {}, { gatewayDeviceId: 'other', isGatewayAlive: true }, 'another gateway'],
    ['behind a gateway that is offline', {}, { gatewayDeviceId: 'other' }, 'adopt'],
    ['behind an offline gateway, with a key', {}, { gatewayDeviceId: 'other', usesOwnKey: true }, 'adopt'],
    ['that connects by itself', {}, { usesOwnKey: true }, 'rotate its credentials'],
    ['that is a gateway', {}, { hasChildren: true }, 'the device is a gateway itself'],
    ['that is the gateway', {}, { deviceId: 'gateway', usesOwnKey: true }, 'that of the gateway itself'],
    ['of its customer', {}, { customerId: 'a' }, 'adopt'],
    ['of another customer', {}, { customerId: 'b' }, 'the device belongs to another customer'],
    ['of any customer by one of the tenant', { customerId: null }, { customerId: 'b' }, 'adopt'],
    ['of its own, which is another customer’s now', {}, { customerId: 'b', gatewayDeviceId: 'gateway' }, 'keep'],
    ['by a child', { isChild: true }, undefined, 'a device behind a gateway cannot be a gateway'],
    ['by a child, of its own', { isChild: true }, { gatewayDeviceId: 'gateway' }, 'cannot be a gateway'],
  ];
  for (const [title, asking, wanted, expected] of cases) {
    it(title, () => {
      const decision = decideConnect({ ...gateway, ...asking }, wanted && { ...device, ...wanted });
      expect(decision.action === 'refuse' ? decision.reason : decision.action).to.include(expected);
    });
  }
});
