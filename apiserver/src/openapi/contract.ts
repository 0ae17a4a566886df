// The contract with its comments, read from the committed descriptor set; the generated messages do not carry comments.
import {
  createFileRegistry,
  type DescEnum,
  type DescEnumValue,
  type DescField,
  type DescMessage,
  type DescMethod,
  type DescService,
  type FileRegistry,
  fromBinary,
} from '@bufbuild/protobuf';
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt';
import { publicServices } from '../gateway/services.ts';

/** An element of the contract that may have a comment. */
export type Described = DescService | DescMethod | DescMessage | DescField | DescEnum | DescEnumValue;

/** The public services and their comments. */
export interface Contract {
  readonly services: readonly DescService[];
  /** Returns the leading comment of an element, as paragraphs; empty if it has none. */
  readonly comment: (of: Described) => string;
}

/** Reads a descriptor set built with `buf build --as-file-descriptor-set`. Throws if a public service is missing. */
export function readContract(bytes: Uint8Array): Contract {
  const set = fromBinary(FileDescriptorSetSchema, bytes);
  const registry = createFileRegistry(set);
  const services = publicServices.map(({ typeName }) => {
    const service = registry.getService(typeName);
    if (!service) throw new Error(`${typeName} is missing from the descriptor set`);
    return service;
  });
  const comments = readComments(registry);
  return { services, comment: (of) => comments.get(keyOf(of)) ?? '' };
}

function keyOf(of: Described): string {
  switch (of.kind) {
    case 'rpc':
    case 'field':
    case 'enum_value':
      return `${of.parent.typeName}#${of.name}`;
    default:
      return of.typeName;
  }
}

// Field numbers of google/protobuf/descriptor.proto that occur in the path of a source location.
const fileMessages = 4;
const fileEnums = 5;
const fileServices = 6;
const messageFields = 2;
const messageMessages = 3;
const messageEnums = 4;
const children = 2;

function readComments(registry: FileRegistry): Map<string, string> {
  const comments = new Map<string, string>();
  for (const file of registry.files) {
    const byPath = new Map<string, string>();
    for (const location of file.proto.sourceCodeInfo?.location ?? []) {
      if (location.leadingComments) byPath.set(location.path.join('.'), paragraphs(location.leadingComments));
    }
    const note = (of: Described, path: string): void => {
      const text = byPath.get(path);
      if (text) comments.set(keyOf(of), text);
    };
    const noteEnum = (of: DescEnum, path: string): void => {
      note(of, path);
      for (const [index, value] of of.values.entries()) note(value, `${path}.${children}.${index}`);
    };
    const noteMessage = (of: DescMessage, path: string): void => {
      note(of, path);
      // Oneof fields are listed with the others in file order, as in `fields`.
      for (const [index, field] of of.proto.field.entries()) {
        const described = of.fields.find((candidate) => candidate.number === field.number);
        if (described) note(described, `${path}.${messageFields}.${index}`);
      }
      for (const inner of of.nestedMessages) {
        noteMessage(inner, `${path}.${messageMessages}.${of.proto.nestedType.indexOf(inner.proto)}`);
      }
      for (const [index, inner] of of.nestedEnums.entries()) noteEnum(inner, `${path}.${messageEnums}.${index}`);
    };
    for (const [index, message] of file.messages.entries()) noteMessage(message, `${fileMessages}.${index}`);
    for (const [index, of] of file.enums.entries()) noteEnum(of, `${fileEnums}.${index}`);
    for (const [index, service] of file.services.entries()) {
      note(service, `${fileServices}.${index}`);
      for (const [at, method] of service.methods.entries()) {
        note(method, `${fileServices}.${index}.${children}.${at}`);
      }
    }
  }
  return comments;
}

/** Joins lines into paragraphs, which are separated by empty lines. */
const paragraphs = (comment: string): string =>
  comment
    .split(/\n\s*\n/)
    .map((part) =>
      part
        .split('\n')
        .map((line) => line.trim())
        .filter(Boolean)
        .join(' '),
    )
    .filter(Boolean)
    .join('\n\n');
