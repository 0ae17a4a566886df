import { expect } from 'chai';
import { judge } from './audit-report.ts';

const report = (vulnerabilities: unknown): string => JSON.stringify({ auditReportVersion: 2, vulnerabilities });

describe('a report of advisories', () => {
  for (const [what, output, code, line] of [
    ['without any', report({}), 0, 'no package has a known advisory'],
    ['with one', report({ x: { name: 'x', severity: 'high', range: '<2' } }), 1, 'high: x <2'],
    ['with one that cannot be read', report({ x: { name: 'x' } }), 1, 'an advisory that cannot be read'],
    ['of a network that is away', JSON.stringify({ message: 'request failed', error: {} }), 3, /^NOT AUDITED: /],
    ['of another version', JSON.stringify({ auditReportVersion: 1, vulnerabilities: {} }), 3, /^NOT AUDITED: /],
    ['that is empty', '', 3, /^NOT AUDITED: /],
    ['that is no JSON', '<html>', 3, /^NOT AUDITED: /],
  ] as const) {
    it(what, () => {
      const verdict = judge(output);
      expect(verdict.code).to.equal(code);
      if (typeof line === 'string') expect(verdict.lines).to.deep.equal([line]);
      else expect(verdict.lines[0]).to.match(line);
    });
  }
});
