import { expect } from 'chai';
import { randomTraceId, readTraceContext, traceparentOf } from './trace-context.ts';

const traceId = '0af7651916cd43dd8448eb211c80319c';
const spanId = 'b7ad6b7169203331';
const valid = `00-${traceId}-${spanId}-01`;

describe('W3C trace context', () => {
  for (const [what, traceparent, flags] of [
    ['version 00', valid, 1],
    ['not recorded', `00-${traceId}-${spanId}-00`, 0],
    ['flags of later versions', `00-${traceId}-${spanId}-ff`, 255],
    ['a later version', `cc-${traceId}-${spanId}-01`, 1],
    ['a later version with more', `cc-${traceId}-${spanId}-01-what-the-future-brings`, 1],
  ] as const) {
    it(`accepts ${what}`, () => {
      expect(readTraceContext(traceparent, undefined)).to.deep.equal({ traceId, spanId, flags, tracestate: '' });
    });
  }

  for (const [what, traceparent] of [
    ['none', undefined],
    ['an empty header', ''],
    ['version ff', `ff-${traceId}-${spanId}-01`],
    ['version 00 with more', `${valid}-more`],
    ['a later version with unseparated content', `cc-${traceId}-${spanId}-01.more`],
    ['capitals', valid.toUpperCase()],
    ['a trace of zeros', `00-${'0'.repeat(32)}-${spanId}-01`],
    ['a span of zeros', `00-${traceId}-${'0'.repeat(16)}-01`],
    ['a short trace', `00-${traceId.slice(1)}-${spanId}-01`],
    ['spaces', ` ${valid}`],
    ['multiple values', `${valid}, ${valid}`],
  ] as const) {
    it(`rejects ${what}`, () => expect(readTraceContext(traceparent, 'a=1')).to.equal(undefined));
  }

  for (const [tracestate, want] of [
    ['congo=t61rcWkgMzE,rojo=00f067aa0ba902b7', 'congo=t61rcWkgMzE,rojo=00f067aa0ba902b7'],
    [' a=1 ,, b=2 ', 'a=1,b=2'],
    ['tenant@vendor=x', 'tenant@vendor=x'],
    ['a=1,a=2', ''],
    ['A=1', ''],
    ['a', ''],
    ['a=b=c', ''],
    ['=1', ''],
    [`a=${'x'.repeat(257)}`, ''],
    [Array.from({ length: 33 }, (_, index) => `k${index}=1`).join(','), ''],
  ] as const) {
    it(`parses the state ${JSON.stringify(tracestate.slice(0, 40))}`, () => {
      expect(readTraceContext(valid, tracestate)?.tracestate).to.equal(want);
    });
  }

  it('is propagated in version 00 with only the flags of that version', () => {
    expect(traceparentOf(readTraceContext(`cc-${traceId}-${spanId}-ff-x`, '')!)).to.equal(`00-${traceId}-${spanId}-03`);
  });

  it('generates valid, unique ids', () => {
    const ids = Array.from({ length: 2000 }, () => [randomTraceId(16), randomTraceId(8)] as const);
    for (const [trace, span] of ids) {
      expect(readTraceContext(`00-${trace}-${span}-01`, undefined)).to.include({ traceId: trace, spanId: span });
    }
    expect(new Set(ids.flat()).size).to.equal(4000);
  });
});
