// Checks from the descriptors that every list in the contract is paged.
import { type DescField, type DescMethod, ScalarType } from '@bufbuild/protobuf';
import { expect } from 'chai';
import { publicServices } from '../services.ts';

const methods = publicServices.flatMap((service) => service.methods as readonly DescMethod[]);
const scalarOf = (fields: readonly DescField[], name: string): ScalarType | undefined => {
  const field = fields.find((candidate) => candidate.name === name);
  return field?.fieldKind === 'scalar' ? field.scalar : undefined;
};

/** Lists bounded in another way, and by what. */
const bounded = new Map([
  ['ListPendingRpcs', 'the commands waiting for one device'],
  ['ListProofs', 'limit and offset'],
]);

describe('the lists of the contract', () => {
  for (const method of methods.filter(({ name }) => name.startsWith('List'))) {
    it(`${method.parent.name}.${method.name} is paged or a documented exception`, () => {
      const isPaged = scalarOf(method.output.fields, 'next_page_token') === ScalarType.STRING;
      expect(isPaged, 'next_page_token').to.equal(!bounded.has(method.name));
    });
  }

  for (const method of methods.filter(({ input, output }) =>
    [...input.fields, ...output.fields].some(({ name }) => /^(next_)?page_(token|size)$/.test(name)),
  )) {
    it(`${method.parent.name}.${method.name} has page_size, page_token, next_page_token and a list`, () => {
      expect(scalarOf(method.input.fields, 'page_size')).to.equal(ScalarType.INT32);
      expect(scalarOf(method.input.fields, 'page_token')).to.equal(ScalarType.STRING);
      expect(scalarOf(method.output.fields, 'next_page_token')).to.equal(ScalarType.STRING);
      expect(method.output.fields.some(({ fieldKind }) => fieldKind === 'list')).to.equal(true);
    });
  }

  it('exist', () => {
    expect(methods.filter(({ output }) => scalarOf(output.fields, 'next_page_token')).length).to.be.above(15);
  });
});
