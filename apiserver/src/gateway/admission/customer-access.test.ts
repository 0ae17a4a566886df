import { getOption } from '@bufbuild/protobuf';
import {
  access,
  Access_Caller as AccessCaller,
  Access_CustomerAccess as CustomerAccess,
} from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { scopesOfRole } from '../../auth/roles/roles.ts';
import { publicServices } from '../services.ts';

describe('the access of users of customers', () => {
  for (const method of publicServices.flatMap((service) => service.methods)) {
    const { callers, customerAccess, deviceField, scope } = getOption(method, access);
    const isForUsers = callers.includes(AccessCaller.USER);

    it(`is ${isForUsers ? 'decided' : 'not defined'} for ${method.parent.name}/${method.name}`, () => {
      expect(customerAccess !== CustomerAccess.UNSPECIFIED).to.equal(isForUsers);
    });

    const scopes = (['viewer', 'operator'] as const).map((role) => scopesOfRole(role));
    if (isForUsers && scope !== '' && scopes.every((held) => !held.has(scope))) {
      it(`is none for ${method.parent.name}/${method.name}, whose scope no such user holds`, () => {
        expect(customerAccess).to.equal(CustomerAccess.NONE);
      });
    }

    if (customerAccess !== CustomerAccess.OWN_DEVICE) continue;
    it(`can be checked for ${method.parent.name}/${method.name}, which names the device in its only request`, () => {
      expect(method.methodKind).to.equal('unary');
      expect(method.input.fields.map(({ name }) => name)).to.include(deviceField);
    });
  }
});
