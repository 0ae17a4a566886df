// Which methods of the contract need a recent sign-in: docs/decisions/0045-second-factors.md.
import { getOption, hasOption } from '@bufbuild/protobuf';
import { http } from '@kellet/proto/es/google/api/annotations_pb';
import { access, Access_Caller as Caller } from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { publicServices } from '../services.ts';

describe('a recent sign-in', () => {
  for (const method of publicServices.flatMap((service) => service.methods)) {
    const { callers, scope, stepUp } = getOption(method, access);
    const isRead = hasOption(method, http) && getOption(method, http).pattern.case === 'get';
    const isOfPlatform = callers.every((caller) => caller === Caller.PLATFORM);
    if (isRead || !(isOfPlatform || scope === 'users:write' || scope === 'tenant:write')) continue;
    it(`is needed for ${method.parent.name}/${method.name}, which changes who has access`, () => {
      expect(stepUp).to.equal(true);
    });
  }
});
