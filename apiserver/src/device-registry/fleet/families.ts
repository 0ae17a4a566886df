// Decides which devices are deleted in one transaction: the children of gateways are changed with them.

/**
 * Returns the first of the devices which together have less than `most` children, or the first alone. `children` has their numbers,
 * counted in the order of the devices until there are `most`.
 */
export function firstFamilies(
  deviceIds: readonly string[],
  children: ReadonlyMap<string, number>,
  most: number,
): string[] {
  let sum = 0;
  const end = deviceIds.findIndex((deviceId, index) => {
    sum += children.get(deviceId) ?? 0;
    return sum >= most && index > 0;
  });
  return deviceIds.slice(0, end === -1 ? undefined : end);
}
