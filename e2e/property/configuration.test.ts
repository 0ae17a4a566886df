import { expect } from 'chai';
import { sampleIds } from '../../apiserver/src/openapi/sample-ids.ts';
import { configuration, withIds } from './configuration.ts';

describe('the configuration of a schemathesis run', () => {
  const text = configuration(
    { examples: 80, closedExamples: 5, closed: ['CreateTenant'], ending: ['DeleteDevice'] },
    { device_id: ['d1', 'unknown'] },
    { device_id: ['d2'] },
  );
  const [general, closed, ending] = text.split('[[operations]]');

  it('generates many examples for permitted operations, and few for denied ones', () => {
    expect(general).to.include('max-examples = 80');
    expect(closed).to.include('include-operation-id = ["CreateTenant"]').and.to.include('generation.max-examples = 5');
    expect(closed).to.include('phases.coverage.enabled = false');
  });

  it('provides existing ids, and disposable ones for destructive operations', () => {
    expect(general).to.include('[dictionaries.device_id]\nvalues = ["d1","unknown"]');
    for (const place of ['path.device_id', 'query.device_id', 'body.device_id', 'body.device_ids[*]']) {
      expect(general).to.include(`"${place}" = { dictionary = "device_id", probability = 0.6 }`);
      expect(ending).to.include(`"${place}" = { dictionary = "spare_device_id", probability = 0.6 }`);
    }
    expect(general).to.include('[dictionaries.spare_device_id]\nvalues = ["d2"]');
  });
});

describe('the document of a run', () => {
  const parameters = [{ name: 'device_id', schema: { examples: [sampleIds.device_id] } }];
  const document = {
    paths: {
      '/d/{device_id}': {
        get: { operationId: 'GetDevice', parameters },
        delete: { operationId: 'DeleteDevice', parameters },
      },
      '/p': {
        post: { operationId: 'CreatePackage', example: { artifact_uri: 'https://artifacts.example/a-1.2.bin' } },
      },
      '/c': { post: { operationId: 'ClaimDevice', example: { provision_key: '<PROVISION_KEY>' } } },
    },
  };
  const ids = { device_id: ['d1', 'unknown'], provision_key: ['pk'] };

  it('has existing ids in its examples, and disposable ones for destructive operations', () => {
    const made = JSON.stringify(withIds(document, ['DeleteDevice'], ids, { device_id: ['d2'] }).paths);
    const exampleOf = (id: string) => [{ name: 'device_id', schema: { examples: [id] } }];
    expect(JSON.parse(made)).to.deep.equal({
      '/d/{device_id}': {
        get: { operationId: 'GetDevice', parameters: exampleOf('d1') },
        delete: { operationId: 'DeleteDevice', parameters: exampleOf('d2') },
      },
      '/p': { post: { operationId: 'CreatePackage', example: { artifact_uri: 'upload://' } } },
      '/c': { post: { operationId: 'ClaimDevice', example: { provision_key: 'pk' } } },
    });
  });
});
