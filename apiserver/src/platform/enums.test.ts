import { Device_Status, Device_StatusSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { enumFilter } from './enums.ts';

describe('a filter by an enum', () => {
  it('is the name of the value', () =>
    expect(enumFilter('status', Device_StatusSchema, Device_Status.offline)).to.equal('offline'));

  for (const none of [undefined, Device_Status.status_unspecified]) {
    it(`is none when ${none} is given`, () =>
      expect(enumFilter('status', Device_StatusSchema, none)).to.equal(undefined));
  }

  for (const unknown of [99, -1]) {
    it(`is refused when nobody knows ${unknown}`, () =>
      expect(() => enumFilter('status', Device_StatusSchema, unknown))
        .to.throw('status must be one of online, offline')
        .with.property('code', 'INVALID_ARGUMENT'));
  }
});
