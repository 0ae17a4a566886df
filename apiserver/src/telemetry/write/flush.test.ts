import { expect } from 'chai';
import { OpenBatches } from './batches.ts';
import { encodeFlush } from './flush.ts';
import type { IdempotencyRow } from './idempotency-keys.ts';

describe('the Idempotency-Keys of a flush', () => {
  const row = (tenantId: string, holder: string, idempotencyKey: string): IdempotencyRow => ({
    ...{ tenantId, holder, idempotencyKey },
    ...{ requestHash: '', response: '{}' },
  });
  const encoded = (idempotency: readonly IdempotencyRow[]): string => {
    const batches = new OpenBatches(() => '', { maxLeaves: 10, secondsOf: () => 1 });
    const wire = encodeFlush({
      ...{ writerId: '', epoch: 0, number: 1n, points: [], placement: batches.place([], 0, false), received: 0 },
      ...{ segmentId: undefined, finishedSegment: undefined, idempotency },
      ruleFeed: { revisions: new Map(), rows: [] },
    });
    return wire.bytes().toString();
  };

  // Flushes of two processes that wait for each other's keys would both be held up until PostgreSQL ends one of them.
  it('are inserted in the same order, in whatever order they came', () => {
    const rows = [row('acme', 'a', '2'), row('acme', 'a', '10'), row('acme', 'b', '1'), row('other', 'a', '1')];
    const expected = [rows[1]!, rows[0]!, rows[2]!, rows[3]!];
    expect(encoded(rows)).to.equal(encoded(rows.toReversed()));
    const places = expected.map((each) =>
      encoded(rows).indexOf(`('${each.tenantId}', '${each.holder}', '${each.idempotencyKey}',`),
    );
    expect(places).to.deep.equal(places.toSorted((a, b) => a - b));
    expect(places[0]).to.be.above(0);
  });
});
