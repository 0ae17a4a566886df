import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'chai';
import { parseAllDocuments } from 'yaml';
import { checkout } from '../stack/paths.ts';
import { firmwareFile, firmwareVersions, makeFirmware } from './firmware.ts';

interface OtaPackage {
  spec: { version: string; artifact: { uri: string; sha256: string; sizeBytes: number } };
}

describe('firmware of the examples', () => {
  const text = readFileSync(join(checkout, 'examples/quickstart/ota-packages.yaml'), 'utf8');
  const packages = parseAllDocuments(text).map((document) => document.toJS() as OtaPackage);

  it('has a manifest for each version', () => {
    expect(packages.map(({ spec }) => spec.version)).to.deep.equal([...firmwareVersions]);
  });

  for (const { spec } of packages) {
    it(`${spec.version} is at least 1 MiB and matches its manifest`, () => {
      const image = makeFirmware(spec.version);
      expect(image.length)
        .to.be.at.least(1 << 20)
        .and.to.equal(spec.artifact.sizeBytes);
      expect(createHash('sha256').update(image).digest('hex')).to.equal(spec.artifact.sha256);
      expect(spec.artifact.uri.endsWith(`/${firmwareFile(spec.version)}`)).to.equal(true);
    });
  }
});
