import { expect } from 'chai';
import { maximumLevels, placementProblem } from './asset-placement.ts';

describe('the placement of assets', () => {
  const levels = (count: number) => Array.from({ length: count }, (_, index) => `a${index}`);
  const tooDeep = `parent_asset_id: a tree of assets has at most ${maximumLevels} levels`;
  const cycle = 'parent_asset_id: the asset would be among its own ancestors';

  for (const [what, assetId, height, ancestors, want] of [
    ['in a root', 'x', 0, ['a0'], undefined],
    ['in itself', 'x', 0, ['x'], cycle],
    ['in an asset inside it', 'x', 2, ['a1', 'a0', 'x'], cycle],
    ['at the last level', 'x', 0, levels(maximumLevels - 1), undefined],
    ['below the last level', 'x', 0, levels(maximumLevels), tooDeep],
    ['with assets inside it that reach the last level', 'x', 3, levels(maximumLevels - 4), undefined],
    ['with assets inside it below the last level', 'x', 3, levels(maximumLevels - 3), tooDeep],
  ] as const) {
    it(what, () => expect(placementProblem(assetId, height, ancestors)).to.equal(want));
  }
});
