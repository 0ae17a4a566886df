import { expect } from 'chai';
import { latestOf, withPoint } from './latest-values.ts';

const [earlier, later] = ['2026-11-23T12:00:00Z', '2026-11-23T12:00:01.5Z'];

describe('the latest values', () => {
  const values = latestOf({
    device_id: 'd',
    timestamp: later,
    numeric_values: { temperature: 20 },
    string_values: { state: 'ok' },
    updated: { temperature: later, state: earlier },
  });

  it('have a time for each key', () => {
    expect([...values]).to.deep.equal([
      ['state', { value: 'ok', at: earlier }],
      ['temperature', { value: 20, at: later }],
    ]);
  });

  it('follow live points, key by key, and are not replaced by older ones', () => {
    const next = withPoint(values, { timestamp: earlier, numeric_values: { temperature: 1, wind: 3 } });
    expect(next.get('temperature')).to.deep.equal({ value: 20, at: later });
    expect(next.get('wind')).to.deep.equal({ value: 3, at: earlier });
    const last = withPoint(next, { timestamp: later, string_values: { state: 'off' } });
    expect(last.get('state')).to.deep.equal({ value: 'off', at: later });
    expect(values.get('state')!.value).to.equal('ok');
  });
});
