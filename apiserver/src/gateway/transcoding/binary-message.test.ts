import { EverythingSchema } from '@kellet/proto/es/kellet/testing/v1/transcoding_pb';
import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { decodeBinary } from './binary-message.ts';

describe('a binary message', () => {
  it('is decoded without unknown fields, which would take many times their bytes', () => {
    const message = decodeBinary(EverythingSchema, Buffer.from(`0a0161${'a84600'.repeat(100_000)}`, 'hex'));
    expect(message.name).to.equal('a');
    expect(message).to.not.have.property('$unknown');
  });

  it('is refused with the field that the contract forbids', () => {
    expect(() => decodeBinary(EverythingSchema, Buffer.from('0a0100', 'hex'))).to.throw(
      KelletError,
      'name: must not contain NUL',
    );
  });
});
