import { expect } from 'chai';
import { isOwnError, judgePass, type PassParts, readReport } from './outcome.ts';

const report = (...cases: string[]): string =>
  `<?xml version="1.0" encoding="utf-8"?>\n<testsuites><testsuite name="schemathesis">${cases.join('')}</testsuite></testsuites>`;

describe('the report of a schemathesis run', () => {
  it('distinguishes wrong responses from untestable operations', () => {
    const read = readReport(
      report(
        '<testcase name="GET /healthz" time="0.1" />',
        '<testcase name="POST /a/{b}" time="0.1"><failure type="failure" message="x">1. Server error &lt;500&gt;</failure></testcase>',
        '<testcase name="GET /c" time="0"><skipped type="skipped" message="No examples">No examples</skipped></testcase>',
        '<testcase name="GET /&quot;d&quot;" time="0"><error type="error">Runtime Error\nKeyError: &amp;x</error><error type="error">Network Error\nread</error></testcase>',
      ),
    );
    expect(read).to.deep.equal({
      failures: ['POST /a/{b}'],
      errors: [
        { label: 'GET /"d"', text: 'Runtime Error\nKeyError: &x' },
        { label: 'GET /"d"', text: 'Network Error\nread' },
      ],
    });
  });

  for (const [text, isOwn] of [
    ['Runtime Error\nRuntimeError: dictionary changed size during iteration', true],
    ['Failed Health Check\nData generation is extremely slow', true],
    ['Network Error\nConnection reset by peer', false],
    ['Server Unavailable\nNothing responds', false],
    ['Schema Error\nCannot generate', false],
    ['Hook Error\n401', false],
  ] as const) {
    it(`${isOwn ? 'retries' : 'does not retry'} an operation after ${JSON.stringify(text.split('\n')[0])}`, () =>
      expect(isOwnError({ label: 'GET /a', text })).to.equal(isOwn));
  }
});

describe('a pass over the document', () => {
  const clean: PassParts = {
    caller: 'viewer',
    operations: ['GET /a', 'POST /a', 'GET /b'],
    open: new Set(['GET /a', 'GET /b']),
    responses: { 'GET /a': { '200': 3, '400': 1 }, 'POST /a': { '403': 2 }, 'GET /b': { '501': 4 } },
    problems: [],
    repeated: [],
    seconds: 12.3,
  };

  it('passes if everything was tested and something succeeded', () => {
    const { passed, lines } = judgePass(clean);
    expect(passed).to.equal(true);
    expect(lines).to.deep.equal([
      'viewer: ok, 3 of 3 operations, 10 requests in 12 s {"200":3,"400":1,"403":2,"501":4}',
      '  of 2 operations open to this caller 1 are not served (501), 1 succeeded',
    ]);
  });

  const spoilt: [what: string, change: Partial<PassParts>, line: string][] = [
    ['a problem', { problems: ['found: GET /a'] }, '  found: GET /a'],
    [
      'an untested operation',
      { responses: { 'GET /a': { '200': 1 }, 'GET /b': { '200': 1 } } },
      '  not tested: POST /a',
    ],
    [
      'a run without a success',
      { responses: { 'GET /a': { '401': 3 }, 'POST /a': { '403': 1 }, 'GET /b': { '404': 1 } } },
      '  no request succeeded',
    ],
  ];
  for (const [what, change, line] of spoilt) {
    it(`fails after ${what}`, () => {
      const { passed, lines } = judgePass({ ...clean, ...change });
      expect(passed).to.equal(false);
      expect(lines).to.include(line);
    });
  }

  it('names operations that never succeeded, and those run again', () => {
    const { lines } = judgePass({
      ...clean,
      responses: { ...clean.responses, 'GET /b': { '404': 1 } },
      repeated: ['GET /b'],
    });
    expect(lines[1]).to.match(/1 succeeded, never: GET \/b$/);
    expect(lines[2]).to.equal('  run again separately after an internal error of schemathesis: GET /b');
  });
});
