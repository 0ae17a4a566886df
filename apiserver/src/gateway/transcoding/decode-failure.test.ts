import { createRegistry, type DescMessage, fromJson, type JsonObject } from '@bufbuild/protobuf';
import { CreateDeviceRequestSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { IngestRequestSchema } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { explainFailure } from './decode-failure.ts';
import { showProblem } from './field-path.ts';

const registry = createRegistry();

function explain(schema: DescMessage, object: JsonObject): string {
  try {
    fromJson(schema, object, { registry });
  } catch (error) {
    const { path, reason } = explainFailure(schema, object, (error as Error).message, registry);
    return showProblem(schema, path, reason);
  }
  return 'no error';
}

const tags = (count: number, wrong: readonly number[]) =>
  Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index}`, wrong.includes(index) ? 1 : 'x']));

describe('the error for invalid JSON in a request', () => {
  for (const count of [1, 2, 3, 7, 64]) {
    it(`names the failing item of ${count}, in maps, lists and lists of messages`, () => {
      for (let index = 0; index < count; index += 1) {
        expect(explain(CreateDeviceRequestSchema, { tags: tags(count, [index]) })).to.equal(
          `tags["k${index}"]: expected string, got 1`,
        );
        const ids = Array.from({ length: count }, (_, at) => (at === index ? true : 'x'));
        expect(explain(CreateDeviceRequestSchema, { group_ids: ids })).to.equal(
          `group_ids[${index}]: expected string, got true`,
        );
        const points = ids.map((id) => ({ device_id: id, numeric_values: { a: 1 } }));
        expect(explain(IngestRequestSchema, { points })).to.equal(
          `points[${index}].device_id: expected string, got true`,
        );
      }
    });
  }

  it('names the first of several', () => {
    expect(explain(CreateDeviceRequestSchema, { tags: tags(100, [41, 42, 99]) })).to.match(/^tags\["k41"\]/);
    expect(explain(CreateDeviceRequestSchema, { group_ids: ['a', 1, 2] })).to.match(/^group_ids\[1\]/);
  });
});
