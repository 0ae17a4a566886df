// For tests: raw gRPC frames, which no library normalises.
import { create, type DescMessage, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { expect } from 'chai';

/** Frames a message: uncompressed, with four bytes of length. */
export const frame = <S extends DescMessage>(schema: S, init: MessageInitShape<S>): Buffer =>
  framed(toBinary(schema, create(schema, init)));

/** Frames bytes as a message. */
export function framed(bytes: Uint8Array, isCompressed = false): Buffer {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt8(isCompressed ? 1 : 0);
  prefix.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([prefix, bytes]);
}

/** Returns the messages of a body. */
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
