// Decides where in a tree an asset may be. Pure.

/** Maximum number of levels of a tree, so that walking up from an asset takes a bounded number of steps. */
export const maximumLevels = 32;

/**
 * Returns why an asset may not be directly inside another one, or undefined if it may. `height` is the number of levels
 * below the asset; `ancestors` are the other asset and those that contain it, innermost first.
 */
export function placementProblem(assetId: string, height: number, ancestors: readonly string[]): string | undefined {
  if (ancestors.includes(assetId)) return 'parent_asset_id: the asset would be among its own ancestors';
  if (ancestors.length + 1 + height > maximumLevels) {
    return `parent_asset_id: a tree of assets has at most ${maximumLevels} levels`;
  }
  return undefined;
}
