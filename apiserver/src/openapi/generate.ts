// Writes proto/gen/openapi.json from the committed descriptor set (`make generate`).
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { format } from 'prettier';
import { readContract } from './contract.ts';
import { openapiDocument } from './document.ts';

const descriptors = fileURLToPath(import.meta.resolve('@kellet/proto/descriptors.binpb'));
const target = fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json'));
const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

const document = openapiDocument(readContract(readFileSync(descriptors)), version);
writeFileSync(target, await format(JSON.stringify(document), { parser: 'json', printWidth: 120 }));
