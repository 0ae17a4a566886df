import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { type CallerName, type Document, isOpenTo, operationsOf } from './callers.ts';

const document = JSON.parse(
  readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json')), 'utf8'),
) as Document;
const operations = new Map(operationsOf(document).map((one) => [one.label, one.operation]));

describe('permitted operations of each caller', () => {
  const table: [label: string, open: CallerName[]][] = [
    ['GET /healthz', ['admin', 'viewer', 'device', 'platform']],
    ['POST /api/v1/auth/login', ['admin', 'viewer', 'device', 'platform']],
    ['GET /api/v1/devices', ['admin', 'viewer']],
    ['POST /api/v1/devices', ['admin']],
    ['GET /api/v1/auth/sessions', ['admin', 'viewer', 'platform']],
    ['POST /api/v1/telemetry', ['admin', 'device']],
    ['GET /api/v1/devices/{device_id}/ota', ['device']],
    ['POST /api/v1/tenants', ['platform']],
  ];
  for (const [label, open] of table) {
    it(`${label}: ${open.join(', ')}`, () => {
      const callers: CallerName[] = ['admin', 'viewer', 'device', 'platform'];
      expect(callers.filter((name) => isOpenTo(name, operations.get(label)!))).to.deep.equal(open);
    });
  }
});
