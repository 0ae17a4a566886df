// For tests: gRPC as it is on the wire, where no gRPC library may tidy it.
import { create, toBinary, type DescMessage, type MessageInitShape } from '@bufbuild/protobuf';
import { expect } from 'chai';

/** A message with its prefix: not compressed, four bytes of length. */
export const frame = <S extends DescMessage>(schema: S, init: MessageInitShape<S>): Buffer =>
  framed(toBinary(schema, create(schema, init)));

/** Bytes with the prefix of a message. */
export function framed(bytes: Uint8Array, isCompressed = false): Buffer {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt8(isCompressed ? 1 : 0);
  prefix.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([prefix, bytes]);
}

/** The messages of a body. */
export function frames(body: Buffer): Buffer[] {
  const found: Buffer[] = [];
  for (let at = 0; at < body.length;) {
    expect(body[at]).to.equal(0);
    const end = at + 5 + body.readUInt32BE(at + 1);
    found.push(body.subarray(at + 5, end));
    at = end;
  }
  return found;
}
