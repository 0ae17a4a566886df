// Where the data plane may connect to on behalf of a tenant: public addresses, and what an operator has listed. Pure.
import { isIP, isIPv4 } from 'node:net';
import { domainToASCII } from 'node:url';

/** Where a URL leads: its host as the URL class writes it, and its port. */
export interface OutboundTarget {
  /** A DNS name or an IP address, the latter without brackets. */
  readonly host: string;
  readonly port: number;
}

interface Network {
  readonly bytes: Uint8Array;
  readonly prefix: number;
}

interface ListedAddress {
  readonly network: Network;
  /** Undefined: every port. */
  readonly port: number | undefined;
}

interface ListedName {
  /** In lower case; of `*.suffix` the part from the dot. */
  readonly name: string;
  readonly isSuffix: boolean;
  readonly port: number | undefined;
}

/** IPv4-mapped IPv6 (::ffff:0:0/96): the address in the last four bytes, in another spelling. */
const mappedIpv4: Network = {
  bytes: Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0),
  prefix: 96,
};

/** The IPv4 networks of IANA's special-purpose registry and multicast: none of them holds a server of the public Internet. */
const specialIpv4 = [
  '0.0.0.0/8', // this network
  '10.0.0.0/8', // private
  '100.64.0.0/10', // carrier-grade NAT
  '127.0.0.0/8', // loopback
  '168.63.129.16/32', // Azure's platform, which only virtual machines reach
  '169.254.0.0/16', // link-local, with the metadata services of clouds
  '172.16.0.0/12', // private
  '192.0.0.0/24', // protocol assignments
  '192.0.2.0/24', // documentation
  '192.31.196.0/24', // AS112
  '192.52.193.0/24', // AMT
  '192.88.99.0/24', // 6to4 relays
  '192.168.0.0/16', // private
  '192.175.48.0/24', // AS112
  '198.18.0.0/15', // benchmarks
  '198.51.100.0/24', // documentation
  '203.0.113.0/24', // documentation
  '224.0.0.0/4', // multicast
  '240.0.0.0/4', // reserved, with 255.255.255.255
].map(networkOf);

/** The only IPv6 network that is given out to the public. Loopback, unique local, link-local, multicast and the rest lie outside. */
const globalUnicast = networkOf('2000::/3');

/** The special-purpose networks within it. */
const specialIpv6 = [
  '2001::/23', // protocol assignments: Teredo, benchmarks, ORCHID; no server has one of its exceptions
  '2001:db8::/32', // documentation
  '2002::/16', // 6to4: an IPv4 address, private ones too
  '2620:4f:8000::/48', // AS112
  '3fff::/20', // documentation
].map(networkOf);

/** NAT64: leads to the IPv4 address in the last four bytes. */
const translatedIpv4 = networkOf('64:ff9b::/96');

/** Private networks in which a listed name may lie. */
const privateNetworks = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'].map(networkOf);

/** Metadata services of clouds in private networks: no name leads there. */
const metadataServices = ['fd00:ec2::254/128', 'fd20:ce::254/128'].map(networkOf);

/** Whether an address is one of the public Internet. False for what is not an address. */
export function isPublicAddress(address: string): boolean {
  const bytes = bytesOf(address);
  return bytes !== undefined && isPublic(bytes);
}

/** Hosts and networks that may be connected to although they are not public. */
export class OutboundHosts {
  private readonly addresses: readonly ListedAddress[];
  private readonly names: readonly ListedName[];

  constructor(addresses: readonly ListedAddress[], names: readonly ListedName[]) {
    this.addresses = addresses;
    this.names = names;
  }

  /** Whether the host of a URL is listed itself, by its name or its address: it may then be spoken to without TLS. */
  isListed({ host, port }: OutboundTarget): boolean {
    const bytes = bytesOf(host);
    return bytes ? this.isAddressListed(bytes, port) : this.isNameListed(host, port);
  }

  /**
   * Whether a connection to `address` is allowed, where the target's host has led. Public addresses are, and listed ones, and
   * private networks under a listed name. The addresses of this machine are allowed only when they are listed.
   */
  allows({ host, port }: OutboundTarget, address: string, ownAddresses: readonly string[]): boolean {
    const bytes = bytesOf(address);
    if (!bytes) return false;
    if (this.isAddressListed(bytes, port)) return true;
    const isOwn = ownAddresses.some((own) => {
      const ownBytes = bytesOf(own);
      return ownBytes !== undefined && isSame(ownBytes, embeddedIpv4(bytes) ?? bytes);
    });
    if (isOwn) return false;
    if (isPublic(bytes)) return true;
    const isPrivate = isInOneOf(bytes, privateNetworks) && !isInOneOf(bytes, metadataServices);
    return isPrivate && isIP(host) === 0 && this.isNameListed(host, port);
  }

  private isAddressListed(bytes: Uint8Array, port: number): boolean {
    return this.addresses.some(
      (listed) => (listed.port === undefined || listed.port === port) && isIn(bytes, listed.network),
    );
  }

  private isNameListed(host: string, port: number): boolean {
    const name = host.toLowerCase().replace(/\.$/, '');
    return this.names.some(
      (listed) =>
        (listed.port === undefined || listed.port === port) &&
        (listed.isSuffix ? name.endsWith(listed.name) && name !== listed.name : name === listed.name),
    );
  }
}

/**
 * Reads a comma-separated list of names (`host`, `*.suffix`), addresses and CIDR networks; a name or an address may have a
 * port (`host:8080`, `[::1]:8080`). Throws an Error that quotes the entry that is wrong.
 */
export function parseOutboundHosts(text: string): OutboundHosts {
  const addresses: ListedAddress[] = [];
  const names: ListedName[] = [];
  for (const part of text.split(',')) {
    const entry = part.trim();
    if (entry === '') continue;
    const fail = (problem: string): never => {
      throw new Error(`${JSON.stringify(entry)} ${problem}`);
    };
    if (entry.includes('://')) fail('is a URL: write the host alone, or host:port');
    if (entry.includes('/')) {
      addresses.push({ network: listedNetwork(entry, fail), port: undefined });
      continue;
    }
    const [, bracketed, plain = '', portText] =
      isIP(entry) === 6 ? [entry, entry] : (/^(?:\[([^\]]*)\]|([^:[\]]*))(?::(.*))?$/.exec(entry) ?? fail(form));
    const port = portText === undefined ? undefined : Number(portText);
    if (port !== undefined && (!/^\d{1,5}$/.test(portText!) || port < 1 || port > 65_535)) {
      fail('has a port that is not from 1 to 65535');
    }
    const address = bracketed ?? plain;
    const bytes = bytesOf(address);
    if (bytes) addresses.push({ network: { bytes, prefix: bytes.length * 8 }, port });
    else if (bracketed !== undefined) fail('has no IPv6 address between its brackets');
    else names.push({ ...listedName(plain, fail), port });
  }
  return new OutboundHosts(addresses, names);
}

const form = 'is no host, host:port, *.suffix, address or CIDR network';

/** The network of an entry such as 10.1.0.0/16. One as large as the Internet is a mistake and refused. */
function listedNetwork(entry: string, fail: (problem: string) => never): Network {
  const [address = '', prefixText = '', ...rest] = entry.split('/');
  const version = isIP(address);
  if (version === 0 || address.includes('%') || rest.length > 0 || !/^\d{1,3}$/.test(prefixText)) fail(form);
  const network = networkOf(entry);
  if (network.bytes.length === 4 && version === 6) fail('is an IPv4 network in IPv6: write it as IPv4');
  const prefix = Number(prefixText);
  const [least, most] = version === 4 ? [8, 32] : [7, 128];
  if (prefix < least || prefix > most) fail(`has a prefix that is not from ${least} to ${most}`);
  if (network.bytes.some((byte, index) => (byte & ~maskOf(prefix, index)) !== 0)) fail('has bits behind its prefix');
  return network;
}

function listedName(text: string, fail: (problem: string) => never): { name: string; isSuffix: boolean } {
  const isSuffix = text.startsWith('*.');
  const name = domainToASCII((isSuffix ? text.slice(2) : text).replace(/\.$/, '')).toLowerCase();
  const labels = name.split('.');
  const isName = labels.every((label) => /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/.test(label));
  // What ends in a number is an address to URLs, not a name.
  if (!isName || name.length > 253 || /^(\d+|0x[0-9a-f]*)$/.test(labels.at(-1)!)) fail(form);
  return { name: isSuffix ? `.${name}` : name, isSuffix };
}

/** The bytes of an address: four of IPv4, also of an IPv4-mapped one, else sixteen. Undefined for anything else. */
function bytesOf(address: string): Uint8Array | undefined {
  if (isIPv4(address)) return Uint8Array.from(address.split('.'), Number);
  if (isIP(address) === 0) return undefined;
  const [text = ''] = address.split('%');
  // A dotted end stands for two groups.
  const hexadecimal = text.replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_dotted, ...parts: string[]) => {
    const [a, b, c, d] = parts.slice(0, 4).map(Number);
    return `${(a! * 256 + b!).toString(16)}:${(c! * 256 + d!).toString(16)}`;
  });
  const [head = '', tail] = hexadecimal.split('::');
  const groupsOf = (part: string): number[] => (part === '' ? [] : part.split(':').map((group) => parseInt(group, 16)));
  const before = groupsOf(head);
  const after = groupsOf(tail ?? '');
  const groups = [...before, ...Array.from({ length: 8 - before.length - after.length }, () => 0), ...after];
  const bytes = Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 0xff]));
  return isIn(bytes, mappedIpv4) ? bytes.subarray(12) : bytes;
}

function isPublic(bytes: Uint8Array): boolean {
  const ipv4 = embeddedIpv4(bytes);
  if (ipv4) return !isInOneOf(ipv4, specialIpv4);
  return isIn(bytes, globalUnicast) && !isInOneOf(bytes, specialIpv6);
}

/** The IPv4 address that these bytes are, or that NAT64 makes of them. */
function embeddedIpv4(bytes: Uint8Array): Uint8Array | undefined {
  if (bytes.length === 4) return bytes;
  return isIn(bytes, translatedIpv4) ? bytes.subarray(12) : undefined;
}

/** The network that a well-formed CIDR text names. */
function networkOf(text: string): Network {
  const [address = '', prefix] = text.split('/');
  return { bytes: bytesOf(address)!, prefix: Number(prefix) };
}

const isInOneOf = (bytes: Uint8Array, networks: readonly Network[]): boolean =>
  networks.some((network) => isIn(bytes, network));

function isIn(bytes: Uint8Array, { bytes: base, prefix }: Network): boolean {
  if (bytes.length !== base.length) return false;
  return base.every((byte, index) => ((byte ^ bytes[index]!) & maskOf(prefix, index)) === 0);
}

const isSame = (one: Uint8Array, other: Uint8Array): boolean => Buffer.compare(one, other) === 0;

/** Which bits of a byte belong to the prefix. */
function maskOf(prefix: number, index: number): number {
  return (0xff << (8 - Math.max(0, Math.min(8, prefix - index * 8)))) & 0xff;
}
