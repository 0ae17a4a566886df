// Decodes binary messages of clients.
import { type DescMessage, fromBinary, type MessageShape } from '@bufbuild/protobuf';
import { invalidArgument } from '../../platform/errors.ts';
import { wireProblem } from './wire-problem.ts';

/** Decodes a message. Throws INVALID_ARGUMENT, naming the field, for anything the contract forbids. */
export function decodeBinary<M extends DescMessage>(schema: M, bytes: Uint8Array): MessageShape<M> {
  const problem = wireProblem(schema, bytes);
  if (problem !== undefined) throw invalidArgument(problem);
  try {
    // An unknown field would be kept as an object of some fifty times its bytes.
    return fromBinary(schema, bytes, { readUnknownFields: false });
  } catch {
    throw invalidArgument('the message: cannot be decoded');
  }
}
