// The contract with its comments: the committed descriptor set, which unlike the generated messages keeps them.
import { createFileRegistry, fromBinary, type DescField, type DescMessage, type DescService } from '@bufbuild/protobuf';
import type { DescEnum, DescEnumValue, DescMethod, FileRegistry } from '@bufbuild/protobuf';
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt';
import { publicServices } from '../gateway/services.ts';

/** Anything of the contract that may carry a comment. */
export type Described = DescService | DescMethod | DescMessage | DescField | DescEnum | DescEnumValue;

/** The public services as the descriptor set has them, and what their comments say. */
export interface Contract {
  readonly services: readonly DescService[];
  /** The leading comment of a part of the contract in paragraphs; empty when it has none. */
  readonly comment: (of: Described) => string;
}

/** Reads a descriptor set made by `buf build --as-file-descriptor-set`. Throws when it lacks a public service. */
export function readContract(bytes: Uint8Array): Contract {
  const set = fromBinary(FileDescriptorSetSchema, bytes);
  const registry = createFileRegistry(set);
  const services = publicServices.map(({ typeName }) => {
    const service = registry.getService(typeName);
    if (!service) throw new Error(`${typeName} is missing in the descriptor set`);
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

// Numbers of the fields of google/protobuf/descriptor.proto that make up the path of a source location.
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
      // Fields of oneofs stand among the others, in the order of the file, as `fields` has them.
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

/** Lines joined to paragraphs, which an empty line ends. */
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
