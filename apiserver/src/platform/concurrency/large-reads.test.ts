import { expect } from 'chai';
import { LargeReads } from './large-reads.ts';

describe('large reads', () => {
  it('are made a few at a time, those of another tenant at once, and small ones always', async () => {
    const reads = new LargeReads();
    const begun: string[] = [];
    const waiting = new Map<string, () => void>();
    const read = (name: string, tenant: string, rows: number) =>
      reads.run(tenant, rows, 100, async () => {
        begun.push(name);
        await new Promise<void>((resolve) => waiting.set(name, resolve));
      });
    const all = [
      ...['a1', 'a2', 'a3'].map((name) => read(name, 'a', 1000)),
      ...[read('b1', 'b', 101), read('a4', 'a', 100)],
    ];
    await new Promise(setImmediate);
    expect(begun).to.have.members(['a1', 'a2', 'b1', 'a4']);
    waiting.get('a1')!();
    await new Promise(setImmediate);
    expect(begun).to.include('a3');
    for (const finish of waiting.values()) finish();
    await Promise.all(all);
  });
});
