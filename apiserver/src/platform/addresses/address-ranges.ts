// Address ranges from which a credential may be used.
import { BlockList, isIP } from 'node:net';
import { invalidArgument, permissionDenied } from '../errors.ts';

interface Range {
  readonly address: string;
  readonly prefix: number;
  readonly family: 'ipv4' | 'ipv6';
}

/** An allowlist that matches no peer: the unspecified address is never a source. */
const nowhere = ['0.0.0.0/32'];

/** Validates the ranges of a request: CIDR or a single address. Throws INVALID_ARGUMENT naming the field. */
export function checkAllowlist(field: string, ranges: readonly string[]): void {
  if (ranges.length > 100) throw invalidArgument(`${field} must have at most 100 entries`);
  for (const text of ranges) {
    if (!parseRange(text)) throw invalidArgument(`${field}: ${JSON.stringify(text)} is not a CIDR range`);
  }
}

/**
 * Reports whether the address is on the list; an empty list allows every address. Accepts IPv4-mapped IPv6 addresses.
 */
export function isAllowed(address: string, ranges: readonly string[]): boolean {
  if (ranges.length === 0) return true;
  let list = lists.get(ranges);
  if (!list) lists.set(ranges, (list = addressList(ranges)));
  return isListed(list, address);
}

/** Returns why a caller may not come from an address, or undefined if the list allows it, as {@link isAllowed}. */
export const addressRefusal = (address: string, ranges: readonly string[]): string | undefined =>
  isAllowed(address, ranges) ? undefined : 'this address is not on the allowlist';

/** Throws PERMISSION_DENIED unless the list allows the address, as {@link isAllowed}. */
export function checkAddress(address: string, ranges: readonly string[]): void {
  const refusal = addressRefusal(address, ranges);
  if (refusal !== undefined) throw permissionDenied(refusal);
}

/** By the array that a remembered caller keeps, which is not changed. */
const lists = new WeakMap<readonly string[], BlockList>();

/** Returns the ranges as a BlockList, for repeated checks. */
export function addressList(ranges: readonly string[]): BlockList {
  const list = new BlockList();
  for (const text of ranges) {
    const range = parseRange(text);
    if (range) list.addSubnet(range.address, range.prefix, range.family);
  }
  return list;
}

/** Reports whether an address is on a list; false for text that is not an address. */
export function isListed(list: BlockList, address: string): boolean {
  const family = isIP(address);
  return family !== 0 && list.check(address, family === 4 ? 'ipv4' : 'ipv6');
}

/** Reports whether the text is a CIDR range or a single address. */
export const isRange = (text: string): boolean => parseRange(text) !== undefined;

/** Returns the intersection of two lists, where an empty list allows every address. */
export function intersect(first: readonly string[], second: readonly string[]): readonly string[] {
  if (first.length === 0) return second;
  if (second.length === 0) return first;
  const [one, other] = [first.map(parseBits), second.map(parseBits)];
  // Two ranges are either disjoint or nested, so their intersection is the narrower one.
  const shared = new Set([
    ...first.filter((_, index) => other.some((outer) => holds(outer, one[index]))),
    ...second.filter((_, index) => one.some((outer) => holds(outer, other[index]))),
  ]);
  return shared.size === 0 ? nowhere : [...shared];
}

/**
 * Returns the requested ranges that are not contained in the allowed ones; an empty `allowed` list allows every
 * address.
 */
export function rangesBeyond(asked: readonly string[], allowed: readonly string[]): string[] {
  if (allowed.length === 0) return [];
  const outer = allowed.map(parseBits);
  return asked.filter((range) => {
    const inner = parseBits(range);
    return !outer.some((one) => holds(one, inner));
  });
}

/** Reports whether a range contains another one: its bits are the first of the other's. */
const holds = (outer: RangeBits | undefined, inner: RangeBits | undefined): boolean =>
  outer !== undefined && inner?.family === outer.family && inner.bits.startsWith(outer.bits);

/** The bits that all addresses of a range begin with: each of up to 10,000 pairs of two lists is compared by them. */
interface RangeBits {
  readonly family: Range['family'];
  /** As digits. */
  readonly bits: string;
}

function parseBits(text: string): RangeBits | undefined {
  const range = parseRange(text);
  if (!range) return undefined;
  const { address, prefix, family } = range;
  const bits = family === 'ipv4' ? bitsOf(address.split('.').map(Number), 8) : bitsOf(groupsOf(address), 16);
  return { family, bits: bits.slice(0, prefix) };
}

const bitsOf = (parts: readonly number[], width: number): string =>
  parts.map((part) => part.toString(2).padStart(width, '0')).join('');

/** Returns the eight groups of an IPv6 address. */
function groupsOf(address: string): number[] {
  // As the standard writes it: without a dotted part.
  const written = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const [before = '', after] = written.split('::');
  const read = (groups: string): number[] =>
    groups.split(':').flatMap((group) => (group === '' ? [] : [parseInt(group, 16)]));
  if (after === undefined) return read(before);
  const [first, last] = [read(before), read(after)];
  return [...first, ...new Array<number>(8 - first.length - last.length).fill(0), ...last];
}

function parseRange(text: string): Range | undefined {
  const [address = '', prefixText, ...rest] = text.split('/');
  const version = isIP(address);
  if (version === 0 || rest.length > 0 || address.includes('%')) return undefined;
  const family = version === 4 ? 'ipv4' : 'ipv6';
  const longest = version === 4 ? 32 : 128;
  if (prefixText === undefined) return { address, prefix: longest, family };
  if (!/^\d{1,3}$/.test(prefixText) || Number(prefixText) > longest) return undefined;
  return { address, prefix: Number(prefixText), family };
}
