import { Device_Status, Device_StatusSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { enumFilter } from './enums.ts';

describe('enumFilter', () => {
  it('returns the name of the value', () =>
    expect(enumFilter('status', Device_StatusSchema, Device_Status.offline)).to.equal('offline'));

  for (const none of [undefined, Device_Status.status_unspecified]) {
    it(`returns undefined for ${none}`, () =>
      expect(enumFilter('status', Device_StatusSchema, none)).to.equal(undefined));
  }

  for (const unknown of [99, -1]) {
    it(`rejects the unknown value ${unknown}`, () =>
      expect(() => enumFilter('status', Device_StatusSchema, unknown))
        .to.throw('status must be one of online, offline')
        .with.property('code', 'INVALID_ARGUMENT'));
  }
});
