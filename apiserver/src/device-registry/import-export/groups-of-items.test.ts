import { expect } from 'chai';
import { inGroups } from './groups-of-items.ts';

describe('groups of items', () => {
  async function* itemsOf(sizes: readonly number[]): AsyncGenerator<number> {
    yield* sizes;
  }
  const groupsOf = async (sizes: readonly number[]): Promise<number[][]> => {
    const groups: number[][] = [];
    const limits = { items: 3, milliseconds: 10_000, bytes: 10, bytesOf: (size: number) => size };
    for await (const group of inGroups(itemsOf(sizes), limits)) groups.push([...group]);
    return groups;
  };

  it('have so many items, and no more once they have so many bytes', async () => {
    expect(await groupsOf([1, 1, 1, 1])).to.deep.equal([[1, 1, 1], [1]]);
    expect(await groupsOf([4, 6, 1])).to.deep.equal([[4, 6], [1]]);
    expect(await groupsOf([100, 100, 1, 1])).to.deep.equal([[100], [100], [1, 1]]);
    expect(await groupsOf([])).to.deep.equal([]);
  });
});
